// Words that the devices of one host hand each other. All of them are in one thread here.
#pragma once

#include <cstdint>

#include "backend/cuda/testing/host_simulator/thread_block.h"

namespace moesaic::cuda {

inline void st_relaxed_system(uint64_t* to, uint64_t value) { *to = value; }
inline uint64_t ld_relaxed_system(const uint64_t* from) {
  on_host::ThreadBlock::mine().let_others();
  return *from;
}
inline void st_release_system(uint32_t* to, uint32_t value) { *to = value; }
inline uint32_t ld_acquire_system(const uint32_t* from) {
  on_host::ThreadBlock::mine().let_others();
  return *from;
}

}  // namespace moesaic::cuda
