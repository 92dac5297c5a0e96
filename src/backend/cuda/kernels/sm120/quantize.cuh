// mx::quantize_mxfp8 (mx/block.h) by the lanes of a warp: the same bits.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace moesaic::cuda::sm120 {

// Bits that compare like magnitudes, for a block's largest: a NaN is above infinity, that above all others.
__device__ inline uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// The block's scale: the least power of two with which `largest` is at most 448 = 1.75 * 2^8; 255 where a
// value is not finite.
__device__ inline uint32_t e8m0_of(uint32_t largest) {
  constexpr int kExponent = 8;
  constexpr uint32_t kAbove175 = 0x1FFFFF;  // carries into the exponent from there on
  return largest >= 0x7F800000u
             ? 255u
             : static_cast<uint32_t>(max(static_cast<int>((largest + kAbove175) >> 23) - kExponent, 0));
}
// The factor for the block's elements; zero for a scale that is a NaN.
__device__ inline float inverse_of(uint32_t scale) {
  return scale == 255u ? 0.0f : __uint_as_float((254u - scale) << 23);
}
// Nearest even; the other factor zero makes zeros, of a NaN too.
__device__ inline uint32_t code_of(float x, float inverse) {
  if (inverse == 0.0f) return 0u;
  return __nv_cvt_float_to_fp8(x * inverse, __NV_SATFINITE, __NV_E4M3);
}

// The number that a code stands for; zero with a scale that is a NaN, so that the rest is one, too.
__device__ inline float value_of(uint32_t code, uint32_t scale) {
  if (scale == 255u) return 0.0f;
  const __half half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3));
  return __half2float(half) * __uint_as_float(scale == 0u ? 1u << 22 : scale << 23);
}

}  // namespace moesaic::cuda::sm120
