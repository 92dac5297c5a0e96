// Loads that leave no trace in the first-level cache.
#pragma once

#include <cstdint>

namespace moesaic::cuda {

// 16 bytes that are read once.
__device__ inline uint4 load_weights(const uint8_t* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

}  // namespace moesaic::cuda
