// mx::quantize_mxfp8 and quantize_mxfp4 (mx/block.h) by the lanes of a warp: the same bits.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/weights/quad_layout.h"

namespace moesaic::cuda::sm120a {

// What is compared to find a block's largest magnitude: a NaN is above infinity, that above all others.
__device__ inline uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// The block's scale: 2^(floor(log2(largest)) - exponent of the element's largest), 255 where a value is not
// finite.
template <Element kElement>
__device__ inline uint32_t e8m0_of(uint32_t largest) {
  constexpr int kExponent = kElement == Element::kE2M1 ? 2 : 8;
  return largest >= 0x7F800000u ? 255u
                                : static_cast<uint32_t>(max(static_cast<int>(largest >> 23) - kExponent, 0));
}
// What its elements are multiplied by; zero for a scale that is a NaN.
__device__ inline float inverse_of(uint32_t scale) {
  return scale == 255u ? 0.0f : __uint_as_float((254u - scale) << 23);
}
// Nearest even: so many midpoints between the values 0, .5, 1, 1.5, 2, 3, 4, 6 lie below.
__device__ inline uint32_t e2m1_of(float x) {
  const float m = fabsf(x);
  const uint32_t above =
      (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return (__float_as_uint(x) >> 28 & 8u) | above;
}
// Nearest even, saturating; the other factor zero makes zeros, of a NaN too.
template <Element kElement>
__device__ inline uint32_t code_of(float x, float inverse) {
  if (inverse == 0.0f) return 0u;
  if constexpr (kElement == Element::kE2M1)
    return e2m1_of(x * inverse);
  else
    return __nv_cvt_float_to_fp8(x * inverse, __NV_SATFINITE, __NV_E4M3);
}

}  // namespace moesaic::cuda::sm120a
