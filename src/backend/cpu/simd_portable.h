// The compiler's vector types of 16 bytes alone; on x86-64 with the products of SSE2, which every one has.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define MOESAIC_PARTS 4
#include "backend/cpu/simd_parts.h"

namespace moesaic::cpu {
namespace {

constexpr int kScoreHeads = 4, kScoreHalves = 1, kValueHeads = 4, kValueGroups = 1;
constexpr int kIntTokens = 2, kFloatTokens = 2, kBf16Tokens = kFloatTokens;
constexpr int kExpandTokens = kIntTokens + 1;

MOESAIC_INLINE F16::Part fma_part(F16::Part a, F16::Part b, F16::Part c) {
  for (int i = 0; i < 4; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
MOESAIC_INLINE bool any_part(I16::Part mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }
inline float reduce_max(F16 x) { return max_by_halves(x); }
inline I16 widen_bytes(const uint8_t* p) {
  return each_index<int32_t>([p](int i) {
    return I16::Part{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
  });
}
inline float half_to_float(uint16_t h) {
  // Exponent and mantissa moved into place, then scaled by 2^112: exact for normals and subnormals alike.
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7FFFu) << 13;
  float f;
  std::memcpy(&f, &magnitude, 4);
  f *= 5.192296858534828e33f;  // 2^112
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (magnitude >= 0x0F800000u) bits |= 0x7F800000u;  // infinity or NaN
  bits |= sign;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline F16 widen_halves(const uint8_t* p) {
  return each_index<float>([p](int i) {
    uint16_t h[4];
    std::memcpy(h, p + 8 * i, sizeof h);
    return F16::Part{half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3])};
  });
}

constexpr int kWeightOffset = 0, kE2m1Offset = 0;
#if defined(__SSE2__)
MOESAIC_INLINE I16::Part dot2_part(I16::Part acc, Shorts::Part a, I16::Part b) {
  return acc + reinterpret_cast<I16::Part>(
                   _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
}
// Even bytes and odd bytes apart, as int16.
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x) {
  const auto ww = reinterpret_cast<Shorts::Part>(w), xx = reinterpret_cast<Shorts::Part>(x);
  acc = dot2_part(acc, (ww << 8) >> 8, reinterpret_cast<I16::Part>((xx << 8) >> 8));
  return dot2_part(acc, ww >> 8, reinterpret_cast<I16::Part>(xx >> 8));
}
#else
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x) {
  const auto ww = reinterpret_cast<I16::Part>(w);
  for (int i = 0; i < 32; i += 8) acc += ((ww << i) >> 24) * ((x << i) >> 24);
  return acc;
}
MOESAIC_INLINE I16::Part dot2_part(I16::Part acc, Shorts::Part a, I16::Part b) {
  const auto aa = reinterpret_cast<I16::Part>(a);
  return acc + ((aa << 16) >> 16) * ((b << 16) >> 16) + (aa >> 16) * (b >> 16);
}
#endif

// 2 * value = m + [m > 4] + [m > 5] + 3 [m > 6] of the magnitude m; comparisons give -1.
MOESAIC_INLINE Bytes::Part e2m1_part(Bytes::Part codes) {
  using Signed = int8_t __attribute__((vector_size(16)));
  const auto c = reinterpret_cast<Signed>(codes), m = c & int8_t{7};
  const Signed magnitude = m - (m > 4) - (m > 5) + ((m > 6) & int8_t{3}), negative = c > 7;
  return reinterpret_cast<Bytes::Part>((magnitude ^ negative) - negative);
}

}  // namespace
}  // namespace moesaic::cpu
