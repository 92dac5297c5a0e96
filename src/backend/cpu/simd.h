// Sixteen lanes, their element-wise arithmetic and the primitives that kernels need and the language cannot
// say: a file for each instruction set, chosen by the machine flags of the source that includes this one, and
// here what all of them share. Everything has internal linkage: this header is compiled several times with
// different machine flags, and no function may be shared between those.
//
// A file defines
//   F16, I16, Bytes, Shorts     64 bytes of float, int32, uint8 and int16
//   load, store, splat, select, arithmetic and comparisons (-1 in the lanes where they hold), conversions
//   fma (with one rounding), reduce_max, reduce_add, any_greater
//   splat_word  the 32 bits at p in every lane
//   store_narrow  lanes in the range of narrower integers, stored as those
//   widen_bytes, widen_halves  sixteen bytes or F16 to lanes
//   e2m1_weights, low_nibbles, high_nibbles  sixteen E2M1 codes (0..15 in each byte) to twice their value
//               plus kE2m1Offset
//   dot4        acc[lane] += sum over i < 4 of w[4 * lane + i] * x[4 * lane + i]; x signed, |x| <= 127, w
//               signed plus kWeightOffset, whose share is taken out by the task's bias
//   dot2        acc[lane] += a[2 * lane] * b[0] + a[2 * lane + 1] * b[1], int16; load_pairs orders a as it
//               wants, splat_pair makes b
//   dot2_bf16   acc[lane] += w[2 * lane] * x[0] + w[2 * lane + 1] * x[1] in BF16 with float accumulation
//   pin, kPinned  the compiler takes x for changed there and holds it in a register, so it adds in the order
//               that is written
//   kScoreHeads, kScoreHalves, kValueHeads, kValueGroups  heads, and groups of 16 keys or dimensions, whose
//               accumulators stay in registers together (kernels_attend.h)
//   kIntTokens, kFloatTokens, kBf16Tokens  tokens of a tile (kernels_gemm.h)
//   kExpandTokens  tokens from which on MXFP4 is expanded once instead of decoded with every tile, where it
//               was not measured (tuning.h)
// and may define
//   MOESAIC_SHORT_SUMS  doubled E2M1 values are so small that a block's sums can stay in 16 bits, and then
//               may carry an offset: dot_bytes adds the products of w and x in each pair of bytes, modulo
//               2^16, w unsigned and at most 128; as_shorts, add_pairs
//   MOESAIC_DOT2_BF16  its own dot2_bf16
//   MOESAIC_PANELS_APART  float tiles whose weights are in the caches take one panel after the other, not
//   both
//               at once, with kPanelTokens tokens; then Bf16Pairs, widen_pairs and a dot2_bf16 of them
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#define MOESAIC_INLINE inline __attribute__((always_inline))

namespace moesaic::cpu {
namespace {

constexpr auto kHighHalf = static_cast<int32_t>(0xFFFF0000u);

// Four times, as registers have it: twice the value of each E2M1 code plus an offset.
template <int kOffset>
struct E2m1Table {
  alignas(64) uint8_t value[64] = {};
  constexpr E2m1Table() {
    constexpr int kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int i = 0; i < 64; ++i)
      value[i] = static_cast<uint8_t>((i % 16 < 8 ? kTwice[i % 8] : -kTwice[i % 8]) + kOffset);
  }
};

}  // namespace
}  // namespace moesaic::cpu

// One macro per property. MOESAIC_AVX512 and MOESAIC_AVX2: lanes of 512 or of 256 bits on x86; MOESAIC_VNNI:
// VPDPBUSD and VPDPWSSD in that width; MOESAIC_BF16: VDPBF16PS. MOESAIC_DOTPROD, _I8MM and _BFDOT: SDOT,
// SMMLA and BFDOT of Arm.
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
#include "backend/cpu/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "backend/cpu/simd_avx2.h"
#elif defined(__ARM_NEON)
#include "backend/cpu/simd_neon.h"
#else
#include "backend/cpu/simd_portable.h"
#endif

namespace moesaic::cpu {
namespace {

inline F16 max(F16 a, F16 b) { return select(a > b, a, b); }
inline F16 min(F16 a, F16 b) { return select(a < b, a, b); }
inline F16 abs(F16 x) { return as_float(as_int(x) & 0x7FFFFFFF); }
inline I16 lane_numbers() {
  constexpr int32_t kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load<I16>(kNumbers);
}

// In a fixed order: halves, quarters, eighths, pairs.
inline float reduce_add(F16 x) {
  float a[16];
  store(a, x);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}

// Nearest integer, ties to even, for |x| < 2^22: the sum with 1.5 * 2^23 holds it in its low bits.
inline I16 to_int(F16 x) { return as_int(x + splat(12582912.0f)) - 0x4B400000; }

// Sixteen E4M3 codes (no NaN) to their values: exponent and mantissa moved into place, then scaled by 2^120.
inline F16 widen_e4m3(const uint8_t* p) {
  const I16 b = widen_bytes(p);
  return as_float(((b & 0x80) << 24) | ((b & 0x7F) << 20)) * splat(1.329227995784916e36f);
}
// Sixteen E2M1 codes, each the low bits of a word, likewise by 2^126.
inline F16 e2m1_values(I16 codes) {
  return as_float(((codes & 8) << 28) | ((codes & 7) << 22)) * splat(8.507059173023462e37f);
}

// 2^x for x <= 0 to within 2 units in the last place; everything below 2^-125 counts as 2^-125.
// 2^n * p(f), n + f = x, |f| <= 1/2; p is the degree-6 minimax polynomial of 2^f.
constexpr float kLog2E = 1.44269504088896341f;
inline F16 exp2_nonpositive(F16 x) {
  const F16 t = max(x, splat(-125.0f));
  const F16 shifted = t + splat(12582912.0f);  // n in the low bits
  const F16 f = t - (shifted - splat(12582912.0f));
  F16 p = splat(1.5403530393381609e-4f);
  p = fma(p, f, splat(1.3333558146428443e-3f));
  p = fma(p, f, splat(9.6181291076284772e-3f));
  p = fma(p, f, splat(5.5504108664821580e-2f));
  p = fma(p, f, splat(2.4022650695910071e-1f));
  p = fma(p, f, splat(6.9314718055994531e-1f));
  p = fma(p, f, splat(1.0f));
  return as_float(as_int(p) + (as_int(shifted) << 23));
}
// 2^x for x <= 0 to within 3e-6, for softmax weights, which are rounded to 14 bits; 0 far below 2^-125.
#if !MOESAIC_AVX512
inline F16 exp2_weight(F16 x) { return exp2_nonpositive(x); }
#endif

#if !MOESAIC_DOT2_BF16
inline F16 dot2_bf16(F16 acc, const uint8_t* w, const uint16_t* x) {
  const I16 pair = load<I16>(w), word = splat_word(x);
  acc = fma(as_float(pair << 16), as_float(word << 16), acc);
  return fma(as_float(pair & kHighHalf), as_float(word & kHighHalf), acc);
}
#endif

// Nearest integers (|x| < 2^15) of a * ua and b * ub, those of one lane side by side: the low bits of the sum
// with 1.5 * 2^23.
inline I16 round_pairs(F16 a, F16 ua, F16 b, F16 ub) {
  const F16 shift = splat(12582912.0f);
  return (as_int(fma(a, ua, shift)) & 0xFFFF) | (as_int(fma(b, ub, shift)) << 16);
}

}  // namespace
}  // namespace moesaic::cpu
