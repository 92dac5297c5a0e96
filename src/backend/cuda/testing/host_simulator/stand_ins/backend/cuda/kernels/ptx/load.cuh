// load.cuh on the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cuda/testing/host_simulator/thread_block.h"

namespace moesaic::cuda {

inline uint4 load_weights(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }
// As late as the waits allow; what is not valid is zero at once.
inline void cp_async(void* shared, const void* global, bool valid) {
  if (valid) {
    on_host::ThreadBlock::mine().copies().open.push_back({shared, global});
  } else {
    std::memset(shared, 0, 16);
  }
}
inline void cp_async_commit() { on_host::ThreadBlock::mine().copies().commit(); }
template <int kPending>
void cp_async_wait() {
  on_host::ThreadBlock::mine().copies().wait(kPending, [](const auto& copies) {
    for (const on_host::Copy& c : copies) std::memcpy(c.to, c.from, 16);
  });
}

}  // namespace moesaic::cuda
