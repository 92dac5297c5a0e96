// ldmatrix.cuh on the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cuda/testing/host_simulator/thread_block.h"

namespace moesaic::cuda {

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) {
  on_host::ThreadBlock& block = on_host::ThreadBlock::mine();
  const auto rows = block.exchange(row);
  for (int i = 0; i < 4; ++i)
    std::memcpy(&r[i], block.shared() + rows[8 * i + block.lane() / 4] + block.lane() % 4 * 4, 4);
}

}  // namespace moesaic::cuda
