// AVX2 with FMA and F16C; with AVX-VNNI, or the same two instructions in AVX-512's encoding, where they are
// compiled for.
#pragma once

#include <immintrin.h>

#define MOESAIC_AVX2 1
#define MOESAIC_DOT2_BF16 1
#define MOESAIC_PANELS_APART 1
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define MOESAIC_VNNI 1
#else
#define MOESAIC_SHORT_SUMS 1
#endif

#define MOESAIC_PARTS 2
#include "backend/cpu/simd_parts.h"

namespace moesaic::cpu {
namespace {

constexpr int kScoreHeads = 2, kScoreHalves = 2, kValueHeads = 2, kValueGroups = 2;  // 8 of 16 registers
// See BlockDots; 2 x 2 float accumulators of 2 registers. Four tokens of BF16 spill some, but two wait for
// sums: 49 instead of 26 thousand million products a second on a Zen 4 core.
constexpr int kIntTokens = 4, kFloatTokens = 2, kBf16Tokens = 4;
// 5 accumulators of 2 registers, 4 registers of weights and 2 of an activation are what there is. On a Zen 3
// core 4 tokens of BF16 have 55 GFLOP/s, 5 have 72, and 6, which spill, 63; both panels at once had 44.
constexpr int kPanelTokens = 5;
// Likewise: 101 throughout decoded and 93, 100, 107, 113 expanded.
constexpr int kExpandTokens = 13;

template <typename V>
MOESAIC_INLINE __m256i bits(V x) {
  return reinterpret_cast<__m256i>(x);
}

MOESAIC_INLINE F16::Part fma_part(F16::Part a, F16::Part b, F16::Part c) { return _mm256_fmadd_ps(a, b, c); }
MOESAIC_INLINE bool any_part(I16::Part mask) { return _mm256_movemask_epi8(bits(mask)) != 0; }
inline float reduce_max(F16 x) { return max_by_halves(x); }
inline I16 widen_bytes(const uint8_t* p) {
  return each_index<int32_t>([p](int i) {
    return reinterpret_cast<I16::Part>(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i))));
  });
}
inline F16 widen_halves(const uint8_t* p) {
  return each_index<float>([p](int i) {
    return F16::Part(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i)));
  });
}

#if MOESAIC_VNNI
constexpr int kWeightOffset = 128, kE2m1Offset = kWeightOffset;  // VPDPBUSD wants unsigned weights
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x) {
#if defined(__AVXVNNI__)
  return reinterpret_cast<I16::Part>(_mm256_dpbusd_avx_epi32(bits(acc), bits(w), bits(x)));
#else
  return reinterpret_cast<I16::Part>(_mm256_dpbusd_epi32(bits(acc), bits(w), bits(x)));
#endif
}
MOESAIC_INLINE I16::Part dot2_part(I16::Part acc, Shorts::Part a, I16::Part b) {
#if defined(__AVXVNNI__)
  return reinterpret_cast<I16::Part>(_mm256_dpwssd_avx_epi32(bits(acc), bits(a), bits(b)));
#else
  return reinterpret_cast<I16::Part>(_mm256_dpwssd_epi32(bits(acc), bits(a), bits(b)));
#endif
}
#else
constexpr int kWeightOffset = 0, kE2m1Offset = 12;  // as in simd_avx512.h
MOESAIC_INLINE I16::Part dot2_part(I16::Part acc, Shorts::Part a, I16::Part b) {
  return acc + reinterpret_cast<I16::Part>(_mm256_madd_epi16(bits(a), bits(b)));
}
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(bits(w)), _mm256_sign_epi8(bits(x), bits(w)));
  return dot2_part(acc, reinterpret_cast<Shorts::Part>(pairs),
                   reinterpret_cast<I16::Part>(_mm256_set1_epi16(1)));
}
MOESAIC_INLINE Shorts dot_bytes(const Shorts& sum, const Bytes& w, const I16& x) {
  return each<int16_t>(
      [](auto acc, auto a, auto b) {
        return reinterpret_cast<Shorts::Part>(
            _mm256_add_epi16(bits(acc), _mm256_maddubs_epi16(bits(a), bits(b))));
      },
      sum, w, x);
}
MOESAIC_INLINE Shorts as_shorts(const I16& x) {
  return each<int16_t>([](auto part) { return reinterpret_cast<Shorts::Part>(part); }, x);
}
MOESAIC_INLINE I16 add_pairs(const Shorts& sum) {
  return each<int32_t>(
      [](auto part) {
        return reinterpret_cast<I16::Part>(_mm256_madd_epi16(bits(part), _mm256_set1_epi16(1)));
      },
      sum);
}
#endif

constexpr E2m1Table<kE2m1Offset> kE2m1Table;
MOESAIC_INLINE Bytes::Part e2m1_part(Bytes::Part codes) {
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(kE2m1Table.value));
  return reinterpret_cast<Bytes::Part>(_mm256_shuffle_epi8(table, bits(codes)));
}

// Part by part: fewer registers are in use at a time. The word is shifted and masked as a vector; GCC would
// do that in general registers.
inline F16 dot2_bf16(F16 acc, const uint8_t* w, const uint16_t* x) {
  auto word = splat_word(x).part[0];
  __asm__("" : "+x"(word));
  const auto even = reinterpret_cast<F16::Part>(word << 16),
             odd = reinterpret_cast<F16::Part>(word & kHighHalf);
  const I16 pair = load<I16>(w);
  return each<float>(
      [&](auto sum, auto weights) {
        sum = _mm256_fmadd_ps(reinterpret_cast<F16::Part>(weights << 16), even, sum);
        sum = _mm256_fmadd_ps(reinterpret_cast<F16::Part>(weights & kHighHalf), odd, sum);
        __asm__ volatile("" : "+x"(sum));
        return F16::Part(sum);
      },
      acc, pair);
}

// Sixteen rows' pairs, widened once for several tokens.
struct Bf16Pairs {
  F16 even, odd;
};
MOESAIC_INLINE Bf16Pairs widen_pairs(const uint8_t* w) {
  const I16 pairs = load<I16>(w);
  return {as_float(pairs << 16), as_float(pairs & kHighHalf)};
}
// The mask comes from memory, as no register is left for it.
MOESAIC_INLINE F16 dot2_bf16(const F16& acc, const Bf16Pairs& w, const uint16_t* x) {
  alignas(32) static constexpr int32_t kHighHalves[] = {kHighHalf, kHighHalf, kHighHalf, kHighHalf,
                                                        kHighHalf, kHighHalf, kHighHalf, kHighHalf};
  auto word = splat_word(x).part[0];
  __asm__("" : "+x"(word));
  F16::Part odd;
  __asm__("vpand %2, %1, %0" : "=x"(odd) : "x"(word), "m"(kHighHalves));
  const auto even = reinterpret_cast<F16::Part>(word << 16);
  const auto times = [](const F16::Part& b) {
    return [b](auto sum, auto a) { return F16::Part(_mm256_fmadd_ps(a, b, sum)); };
  };
  return each<float>(times(odd), each<float>(times(even), acc, w.even), w.odd);
}

}  // namespace
}  // namespace moesaic::cpu
