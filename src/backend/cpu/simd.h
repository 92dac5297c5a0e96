// Sixteen lanes, spelled once per instruction set. Plain element-wise arithmetic uses the compiler's vector
// types, which it lowers to one AVX-512, two AVX2 or four NEON registers; what the language cannot say is
// written here. Everything has internal linkage: this header is compiled several times with different machine
// flags, and no function may be shared between those.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__) && defined(__AVX512BW__)
#define MOESAIC_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MOESAIC_AVX2 1
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#define MOESAIC_DOTPROD 1
#endif

namespace moesaic::cpu {
namespace {

using F16 = float __attribute__((vector_size(64)));
using I16 = int32_t __attribute__((vector_size(64)));
using U16 = uint32_t __attribute__((vector_size(64)));
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
inline F16 splat(float x) { return F16{} + x; }
inline I16 splat(int32_t x) { return I16{} + x; }
inline F16 to_float(I16 x) { return __builtin_convertvector(x, F16); }
inline F16 as_float(I16 x) { return reinterpret_cast<F16>(x); }
inline I16 as_int(F16 x) { return reinterpret_cast<I16>(x); }
inline F16 max(F16 a, F16 b) { return a > b ? a : b; }
inline F16 min(F16 a, F16 b) { return a < b ? a : b; }
inline F16 abs(F16 x) { return as_float(as_int(x) & 0x7FFFFFFF); }

inline float reduce_max(F16 x) {
#if MOESAIC_AVX512
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(x));
#else
  float m = x[0];
  for (int i = 1; i < 16; ++i) m = x[i] > m ? x[i] : m;
  return m;
#endif
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

// a * b + c with one rounding.
inline F16 fma(F16 a, F16 b, F16 c) {
#if MOESAIC_AVX512
  return reinterpret_cast<F16>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#else
  F16 r;
  for (int i = 0; i < 16; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#endif
}

// Nearest integer, ties to even, for |x| < 2^22: the sum with 1.5 * 2^23 holds it in its low bits.
inline I16 to_int(F16 x) { return as_int(x + splat(12582912.0f)) - 0x4B400000; }

inline bool any_greater(F16 a, F16 b) {
#if MOESAIC_AVX512
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_GT_OQ) != 0;
#else
  const I16 greater = a > b;
  int32_t any = 0;
  for (int i = 0; i < 16; ++i) any |= greater[i];
  return any != 0;
#endif
}

// The 32 bits at p in every lane.
inline I16 splat_word(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
#if MOESAIC_AVX512
  return reinterpret_cast<I16>(_mm512_set1_epi32(word));
#else
  return splat(word);
#endif
}

// acc[lane] += sum over i < 4 of w[4 * lane + i] * x[4 * lane + i]; x signed, w signed plus kWeightOffset.
// |x| <= 127. The offset's share is taken out by the task's bias.
#if MOESAIC_AVX512
constexpr int kWeightOffset = 128;
inline I16 dot4(I16 acc, Bytes w, I16 x) {
  return reinterpret_cast<I16>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(w), reinterpret_cast<__m512i>(x)));
}
// acc[lane] += a[2 * lane] * b[2 * lane] + a[2 * lane + 1] * b[2 * lane + 1], int16.
inline I16 dot2(I16 acc, Shorts a, I16 b) {
  return reinterpret_cast<I16>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
#elif MOESAIC_AVX2
constexpr int kWeightOffset = 0;
inline I16 dot4(I16 acc, Bytes w, I16 x) {
  __m256i a[2], ww[2], xx[2];
  std::memcpy(a, &acc, 64);
  std::memcpy(ww, &w, 64);
  std::memcpy(xx, &x, 64);
  for (int h = 0; h < 2; ++h) {
    // |w| <= 128 unsigned times x with w's sign: pairs stay below 2 * 128 * 127 = 32512.
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(ww[h]), _mm256_sign_epi8(xx[h], ww[h]));
    a[h] = _mm256_add_epi32(a[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  std::memcpy(&acc, a, 64);
  return acc;
}
inline I16 dot2(I16 acc, Shorts a, I16 b) {
  __m256i c[2], aa[2], bb[2];
  std::memcpy(c, &acc, 64);
  std::memcpy(aa, &a, 64);
  std::memcpy(bb, &b, 64);
  for (int h = 0; h < 2; ++h) c[h] = _mm256_add_epi32(c[h], _mm256_madd_epi16(aa[h], bb[h]));
  std::memcpy(&acc, c, 64);
  return acc;
}
#elif MOESAIC_DOTPROD
constexpr int kWeightOffset = 0;
inline I16 dot4(I16 acc, Bytes w, I16 x) {
  int32x4_t a[4];
  int8x16_t ww[4], xx[4];
  std::memcpy(a, &acc, 64);
  std::memcpy(ww, &w, 64);
  std::memcpy(xx, &x, 64);
  for (int i = 0; i < 4; ++i) a[i] = vdotq_s32(a[i], ww[i], xx[i]);
  std::memcpy(&acc, a, 64);
  return acc;
}
#else
constexpr int kWeightOffset = 0;
inline I16 dot4(I16 acc, Bytes w, I16 x) {
  int8_t xx[64];
  std::memcpy(xx, &x, 64);
  for (int lane = 0; lane < 16; ++lane) {
    for (int i = 0; i < 4; ++i) acc[lane] += static_cast<int8_t>(w[4 * lane + i]) * xx[4 * lane + i];
  }
  return acc;
}
#endif
#if !MOESAIC_AVX512 && !MOESAIC_AVX2
inline I16 dot2(I16 acc, Shorts a, I16 b) {
  int16_t aa[32], bb[32];
  std::memcpy(aa, &a, 64);
  std::memcpy(bb, &b, 64);
  for (int lane = 0; lane < 16; ++lane) {
    acc[lane] += aa[2 * lane] * bb[2 * lane] + aa[2 * lane + 1] * bb[2 * lane + 1];
  }
  return acc;
}
#endif

// Sixteen E2M1 codes (0..15 in each byte) to twice their value plus kWeightOffset.
alignas(64) constexpr uint8_t kE2m1Table[64] = {
#define MOESAIC_E2M1(v) static_cast<uint8_t>((v) + kWeightOffset)
#define MOESAIC_E2M1_ROW                                                                                \
  MOESAIC_E2M1(0), MOESAIC_E2M1(1), MOESAIC_E2M1(2), MOESAIC_E2M1(3), MOESAIC_E2M1(4), MOESAIC_E2M1(6), \
      MOESAIC_E2M1(8), MOESAIC_E2M1(12), MOESAIC_E2M1(0), MOESAIC_E2M1(-1), MOESAIC_E2M1(-2),           \
      MOESAIC_E2M1(-3), MOESAIC_E2M1(-4), MOESAIC_E2M1(-6), MOESAIC_E2M1(-8), MOESAIC_E2M1(-12)
    MOESAIC_E2M1_ROW, MOESAIC_E2M1_ROW, MOESAIC_E2M1_ROW, MOESAIC_E2M1_ROW};
#undef MOESAIC_E2M1_ROW
#undef MOESAIC_E2M1

inline Bytes e2m1_weights(Bytes codes) {
#if MOESAIC_AVX512
  return reinterpret_cast<Bytes>(
      _mm512_shuffle_epi8(_mm512_load_si512(kE2m1Table), reinterpret_cast<__m512i>(codes)));
#elif MOESAIC_AVX2
  __m256i c[2];
  std::memcpy(c, &codes, 64);
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(kE2m1Table));
  for (int h = 0; h < 2; ++h) c[h] = _mm256_shuffle_epi8(table, c[h]);
  std::memcpy(&codes, c, 64);
  return codes;
#elif defined(__ARM_NEON)
  uint8x16_t c[4];
  std::memcpy(c, &codes, 64);
  for (int i = 0; i < 4; ++i) c[i] = vqtbl1q_u8(vld1q_u8(kE2m1Table), c[i]);
  std::memcpy(&codes, c, 64);
  return codes;
#else
  Bytes w;
  for (int i = 0; i < 64; ++i) w[i] = kE2m1Table[codes[i]];
  return w;
#endif
}
inline Bytes low_nibbles(Bytes b) { return b & 15; }
inline Bytes high_nibbles(Bytes b) {
#if MOESAIC_AVX512
  return reinterpret_cast<Bytes>(
      _mm512_and_si512(_mm512_srli_epi16(reinterpret_cast<__m512i>(b), 4), _mm512_set1_epi8(15)));
#else
  return b >> 4;
#endif
}

// Sixteen bytes, halves or BF16 widened to lanes.
inline I16 widen_bytes(const uint8_t* p) {
#if MOESAIC_AVX512
  return reinterpret_cast<I16>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  I16 v;
  for (int i = 0; i < 16; ++i) v[i] = p[i];
  return v;
#endif
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
#if MOESAIC_AVX512
  return reinterpret_cast<F16>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif MOESAIC_AVX2
  __m256 f[2];
  for (int h = 0; h < 2; ++h)
    f[h] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + h));
  F16 v;
  std::memcpy(&v, f, 64);
  return v;
#else
  uint16_t h[16];
  std::memcpy(h, p, 32);
  F16 v;
  for (int i = 0; i < 16; ++i) v[i] = half_to_float(h[i]);
  return v;
#endif
}
// Sixteen E4M3 codes (no NaN) to their values: exponent and mantissa moved into place, then scaled by 2^120.
inline F16 widen_e4m3(const uint8_t* p) {
  const I16 b = widen_bytes(p);
  return as_float(((b & 0x80) << 24) | ((b & 0x7F) << 20)) * splat(1.329227995784916e36f);
}

// acc[lane] += w[2 * lane] * x[0] + w[2 * lane + 1] * x[1] in BF16 with float accumulation.
inline F16 dot2_bf16(F16 acc, const uint8_t* w, const uint16_t* x) {
#if MOESAIC_AVX512
  return reinterpret_cast<F16>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(acc),
                                                reinterpret_cast<__m512bh>(load<I16>(w)),
                                                reinterpret_cast<__m512bh>(splat_word(x))));
#else
  const I16 pair = load<I16>(w);
  const I16 xx = splat_word(x);
  const I16 high_mask = splat(static_cast<int32_t>(0xFFFF0000u));
  acc = fma(as_float(pair << 16), as_float(xx << 16), acc);
  return fma(as_float(pair & high_mask), as_float(xx & high_mask), acc);
#endif
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
inline F16 exp2_weight(F16 x) {
#if MOESAIC_AVX512
  // scalef multiplies by 2^floor(x); the polynomial is the degree-4 relative minimax of 2^f, 0 <= f < 1.
  const __m512 t = reinterpret_cast<__m512>(x);
  const F16 f = reinterpret_cast<F16>(_mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  F16 p = splat(1.353417e-2f);
  p = fma(p, f, splat(5.201146e-2f));
  p = fma(p, f, splat(2.4144275e-1f));
  p = fma(p, f, splat(6.9300384e-1f));
  p = fma(p, f, splat(1.00000259f));
  return reinterpret_cast<F16>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), t));
#else
  return exp2_nonpositive(x);
#endif
}

// Nearest integers (|x| < 2^15) of a * ua and b * ub, those of one lane side by side: the low bits of the sum
// with 1.5 * 2^23.
inline I16 round_pairs(F16 a, F16 ua, F16 b, F16 ub) {
  const F16 shift = splat(12582912.0f);
  return (as_int(fma(a, ua, shift)) & 0xFFFF) | (as_int(fma(b, ub, shift)) << 16);
}

}  // namespace
}  // namespace moesaic::cpu
