// Arm's Advanced SIMD; with SDOT, SMMLA and BFDOT where they are compiled for.
#pragma once

#include <arm_neon.h>

#define MOESAIC_NEON 1
#if defined(__ARM_FEATURE_DOTPROD)
#define MOESAIC_DOTPROD 1
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define MOESAIC_I8MM 1
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define MOESAIC_BFDOT 1
#define MOESAIC_DOT2_BF16 1
#endif
#endif

#define MOESAIC_PARTS 4
#include "backend/cpu/simd_parts.h"

namespace moesaic::cpu {
namespace {

constexpr int kScoreHeads = 4, kScoreHalves = 1, kValueHeads = 4, kValueGroups = 1;  // 16 of 32 registers
// See BlockDots; 2 x 2 float accumulators of 4 registers.
#if MOESAIC_DOTPROD
constexpr int kIntTokens = 4, kFloatTokens = 2;
#else
constexpr int kIntTokens = 2, kFloatTokens = 2;
#endif
#if MOESAIC_BFDOT
constexpr int kBf16Tokens = 3;  // 24 registers of sums, 4 of weights and 3 of activations
#else
constexpr int kBf16Tokens = kFloatTokens;
#endif
constexpr int kExpandTokens = kIntTokens + 1;

MOESAIC_INLINE F16::Part fma_part(F16::Part a, F16::Part b, F16::Part c) { return vfmaq_f32(c, a, b); }
MOESAIC_INLINE bool any_part(I16::Part mask) { return vmaxvq_u32(reinterpret_cast<uint32x4_t>(mask)) != 0; }
inline float reduce_max(F16 x) {
  const F16::Part a = x.part[0] > x.part[1] ? x.part[0] : x.part[1];
  const F16::Part b = x.part[2] > x.part[3] ? x.part[2] : x.part[3];
  return vmaxvq_f32(vmaxq_f32(a, b));
}
inline I16 widen_bytes(const uint8_t* p) {
  const uint8x16_t b = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(b)), high = vmovl_high_u8(b);
  const auto part = [](uint32x4_t x) { return reinterpret_cast<I16::Part>(x); };
  return {{part(vmovl_u16(vget_low_u16(low))), part(vmovl_high_u16(low)), part(vmovl_u16(vget_low_u16(high))),
           part(vmovl_high_u16(high))}};
}
inline F16 widen_halves(const uint8_t* p) {
  return each_index<float>(
      [p](int i) { return F16::Part(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)))); });
}

constexpr int kWeightOffset = 0, kE2m1Offset = 0;
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x) {
  const auto ww = reinterpret_cast<int8x16_t>(w), xx = reinterpret_cast<int8x16_t>(x);
#if MOESAIC_DOTPROD
  return vdotq_s32(acc, ww, xx);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(ww), vget_low_s8(xx)));
  return acc + vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(ww, xx)));
#endif
}
struct ShortPair {
  int16_t x, y;
};
MOESAIC_INLINE ShortPair splat_pair(const int16_t* p) { return {p[0], p[1]}; }
// The first halves of eight pairs, the second ones, and the same of the other eight.
MOESAIC_INLINE Shorts load_pairs(const int16_t* p) {
  const int16x8x2_t low = vld2q_s16(p), high = vld2q_s16(p + 16);
  return {{low.val[0], low.val[1], high.val[0], high.val[1]}};
}
MOESAIC_INLINE I16 dot2(const I16& acc, const Shorts& a, ShortPair b) {
  return each_index<int32_t>([&](int i) {
    const int16x8_t x = a.part[i & 2], y = a.part[(i & 2) + 1];
    if (i % 2 == 0) {
      return I16::Part(vmlal_n_s16(vmlal_n_s16(acc.part[i], vget_low_s16(x), b.x), vget_low_s16(y), b.y));
    }
    return I16::Part(vmlal_high_n_s16(vmlal_high_n_s16(acc.part[i], x, b.x), y, b.y));
  });
}

constexpr E2m1Table<kE2m1Offset> kE2m1Table;
MOESAIC_INLINE Bytes::Part e2m1_part(Bytes::Part codes) {
  return vqtbl1q_u8(vld1q_u8(kE2m1Table.value), codes);
}

#if MOESAIC_BFDOT
inline F16 dot2_bf16(F16 acc, const uint8_t* w, const uint16_t* x) {
  // Both products are added before they join the sum, rounded to odd, and subnormals are zero (unless
  // FPCR.EBF says otherwise, which Linux leaves off).
  const I16 pair = load<I16>(w), word = splat_word(x);
  return each<float>(
      [](auto sum, auto a, auto b) {
        return F16::Part(
            vbfdotq_f32(sum, reinterpret_cast<bfloat16x8_t>(a), reinterpret_cast<bfloat16x8_t>(b)));
      },
      acc, pair, word);
}
#endif

}  // namespace
}  // namespace moesaic::cpu
