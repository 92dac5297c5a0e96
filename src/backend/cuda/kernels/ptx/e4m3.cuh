// The way from E4M3 to F16, which is exact, and back.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace moesaic::cuda {

// Four numbers. From 8.9 on an instruction each pair; before, exponent and mantissa go where F16 has them,
// and a product with 2^(15 - 7) does the rest, subnormals included. There a NaN becomes 480: weights have
// none (docs/design/numerics.md).
__device__ __forceinline__ uint2 e4m3_to_f16(uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint2 v;
  asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %2;\ncvt.rn.f16x2.e4m3x2 %0, lo;\ncvt.rn.f16x2.e4m3x2 %1, "
      "hi;\n}"
      : "=r"(v.x), "=r"(v.y)
      : "r"(bytes));
  return v;
#else
  const auto widen = [](uint32_t high) {  // a number in the upper byte of each half
    const uint32_t bits = (high & 0x80008000u) | (high >> 1 & 0x3F803F80u), factor = 0x5C005C00u;
    const __half2 v =
        __hmul2(*reinterpret_cast<const __half2*>(&bits), *reinterpret_cast<const __half2*>(&factor));
    return *reinterpret_cast<const uint32_t*>(&v);
  };
  return {widen(__byte_perm(bytes, 0, 0x1404)), widen(__byte_perm(bytes, 0, 0x3424))};
#endif
}

// Two F16 numbers times `factor`, rounded to nearest even and saturating, in the lower half.
__device__ __forceinline__ uint32_t f16_to_e4m3(uint32_t pair, float factor) {
  const __half2 v = __hmul2(*reinterpret_cast<const __half2*>(&pair), __float2half2_rn(factor));
  return __nv_cvt_halfraw2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
}

}  // namespace moesaic::cuda
