// AVX-512: F, BW, DQ and VL; with VNNI and BF16 where they are compiled for.
#pragma once

#include <immintrin.h>

#define MOESAIC_AVX512 1
#if defined(__AVX512VNNI__)
#define MOESAIC_VNNI 1
#else
#define MOESAIC_SHORT_SUMS 1
#endif
#if defined(__AVX512BF16__)
#define MOESAIC_BF16 1
#define MOESAIC_DOT2_BF16 1
#endif

namespace moesaic::cpu {
namespace {

// Accumulators of a page's scores and values, of 32 registers.
constexpr int kScoreHeads = 8, kScoreHalves = 2, kValueHeads = 4, kValueGroups = 4;
constexpr int kIntTokens = 6, kFloatTokens = 6;  // 2 x 6 int and 2 x 6 float accumulators of 32 registers
constexpr int kBf16Tokens = kFloatTokens;
// On a Zen 4 core with weights in L2, thousand million products a second of 7, 12, 24 and 64 tokens: 175,
// 202, 202, 201 decoded and 124, 158, 177, 190 expanded.
constexpr int kExpandTokens = 33;

using F16 = float __attribute__((vector_size(64)));
using I16 = int32_t __attribute__((vector_size(64)));
using Bytes = uint8_t __attribute__((vector_size(64)));
using Shorts = int16_t __attribute__((vector_size(64)));

template <typename V, typename T>
inline V load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename V, typename T>
inline void store(T* p, const V& v) {
  std::memcpy(p, &v, sizeof v);
}
inline F16 splat(float x) { return x - F16{}; }  // 0 + x would be an addition: it turns -0 into 0
inline I16 splat(int32_t x) { return I16{} + x; }
inline F16 to_float(I16 x) { return __builtin_convertvector(x, F16); }
inline F16 as_float(I16 x) { return reinterpret_cast<F16>(x); }
inline I16 as_int(F16 x) { return reinterpret_cast<I16>(x); }
inline F16 select(I16 mask, F16 a, F16 b) { return mask ? a : b; }

MOESAIC_INLINE __m512 floats(F16 x) { return reinterpret_cast<__m512>(x); }
template <typename V>
MOESAIC_INLINE __m512i bits(V x) {
  return reinterpret_cast<__m512i>(x);
}

inline F16 fma(F16 a, F16 b, F16 c) {
  return reinterpret_cast<F16>(_mm512_fmadd_ps(floats(a), floats(b), floats(c)));
}
inline float reduce_max(F16 x) { return _mm512_reduce_max_ps(floats(x)); }
inline int32_t reduce_add(I16 x) { return _mm512_reduce_add_epi32(bits(x)); }
inline bool any_greater(F16 a, F16 b) { return _mm512_cmp_ps_mask(floats(a), floats(b), _CMP_GT_OQ) != 0; }
inline I16 splat_word(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return reinterpret_cast<I16>(_mm512_set1_epi32(word));
}
template <typename Int>
MOESAIC_INLINE void store_narrow(Int* p, const I16& x) {
  using Narrow __attribute__((vector_size(16 * sizeof(Int)))) = Int;
  store(p, __builtin_convertvector(x, Narrow));
}
inline I16 widen_bytes(const uint8_t* p) {
  return reinterpret_cast<I16>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline F16 widen_halves(const uint8_t* p) {
  return reinterpret_cast<F16>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
// exp2_weight: scalef multiplies by 2^floor(x); the polynomial is the degree-4 relative minimax of 2^f, 0 <=
// f < 1.
inline F16 exp2_weight(F16 x) {
  const F16 f = reinterpret_cast<F16>(_mm512_reduce_ps(floats(x), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  F16 p = splat(1.353417e-2f);
  p = fma(p, f, splat(5.201146e-2f));
  p = fma(p, f, splat(2.4144275e-1f));
  p = fma(p, f, splat(6.9300384e-1f));
  p = fma(p, f, splat(1.00000259f));
  return reinterpret_cast<F16>(_mm512_scalef_ps(floats(p), floats(x)));
}

// VPDPBUSD in 32 registers GCC 12 leaves alone.
constexpr bool kPinned = false;
template <typename V>
MOESAIC_INLINE void pin(V& x) {
  __asm__ volatile("" : "+v"(x));
}

using ShortPair = I16;
inline ShortPair splat_pair(const int16_t* p) { return splat_word(p); }
inline Shorts load_pairs(const int16_t* p) { return load<Shorts>(p); }

#if MOESAIC_VNNI
constexpr int kWeightOffset = 128, kE2m1Offset = kWeightOffset;  // VPDPBUSD wants unsigned weights
inline I16 dot4(I16 acc, Bytes w, I16 x) {
  return reinterpret_cast<I16>(_mm512_dpbusd_epi32(bits(acc), bits(w), bits(x)));
}
inline I16 dot2(I16 acc, Shorts a, I16 b) {
  return reinterpret_cast<I16>(_mm512_dpwssd_epi32(bits(acc), bits(a), bits(b)));
}
#else
// VPMADDUBSW adds two products in 16 bits with saturation, so that 8-bit weights may carry no offset: |w| <=
// 128 unsigned times x with w's sign keeps them below 2 * 128 * 127 = 32512. Doubled E2M1 values are so small
// that its sums can stay in 16 bits for a whole block, and then they may carry one.
constexpr int kWeightOffset = 0, kE2m1Offset = 12;
inline I16 dot2(I16 acc, Shorts a, I16 b) {
  return acc + reinterpret_cast<I16>(_mm512_madd_epi16(bits(a), bits(b)));
}
inline I16 dot4(I16 acc, Bytes w, I16 x) {
  const __m512i turned =
      _mm512_mask_sub_epi8(bits(x), _mm512_movepi8_mask(bits(w)), _mm512_setzero_si512(), bits(x));
  return dot2(acc, reinterpret_cast<Shorts>(_mm512_maddubs_epi16(_mm512_abs_epi8(bits(w)), turned)),
              reinterpret_cast<I16>(_mm512_set1_epi16(1)));
}
inline Shorts dot_bytes(Shorts sum, Bytes w, I16 x) {
  return reinterpret_cast<Shorts>(_mm512_add_epi16(bits(sum), _mm512_maddubs_epi16(bits(w), bits(x))));
}
inline Shorts as_shorts(I16 x) { return reinterpret_cast<Shorts>(x); }
inline I16 add_pairs(Shorts sum) {
  return reinterpret_cast<I16>(_mm512_madd_epi16(bits(sum), _mm512_set1_epi16(1)));
}
#endif

constexpr E2m1Table<kE2m1Offset> kE2m1Table;
inline Bytes e2m1_weights(Bytes codes) {
  return reinterpret_cast<Bytes>(_mm512_shuffle_epi8(_mm512_load_si512(kE2m1Table.value), bits(codes)));
}
inline Bytes low_nibbles(Bytes b) { return b & 15; }
inline Bytes high_nibbles(Bytes b) {
  return reinterpret_cast<Bytes>(_mm512_and_si512(_mm512_srli_epi16(bits(b), 4), _mm512_set1_epi8(15)));
}

#if MOESAIC_BF16
inline F16 dot2_bf16(F16 acc, const uint8_t* w, const uint16_t* x) {
  return reinterpret_cast<F16>(_mm512_dpbf16_ps(floats(acc), reinterpret_cast<__m512bh>(load<I16>(w)),
                                                reinterpret_cast<__m512bh>(splat_word(x))));
}
#endif

}  // namespace
}  // namespace moesaic::cpu
