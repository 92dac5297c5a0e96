// 2^x by the special function unit: within 2 units in the last place, subnormal results are zero.
#pragma once

namespace moesaic::cuda {

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace moesaic::cuda
