// The primitives that kernels need and the language cannot say, spelled once per instruction set. Internal
// linkage as in kernels_lanes.h.
#pragma once

#include "backend/cpu/kernels_lanes.h"

namespace moesaic::cpu {
namespace {

inline F16 max(F16 a, F16 b) { return select(a > b, a, b); }
inline F16 min(F16 a, F16 b) { return select(a < b, a, b); }
inline F16 abs(F16 x) { return as_float(as_int(x) & 0x7FFFFFFF); }
inline I16 lane_numbers() {
  constexpr int32_t kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load<I16>(kNumbers);
}

inline float reduce_max(F16 x) {
#if MOESAIC_AVX512
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(x));
#elif MOESAIC_NEON
  const F16::Part a = x.part[0] > x.part[1] ? x.part[0] : x.part[1];
  const F16::Part b = x.part[2] > x.part[3] ? x.part[2] : x.part[3];
  return vmaxvq_f32(vmaxq_f32(a, b));
#else
  float a[16];
  store(a, x);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
  }
  return a[0];
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
inline int32_t reduce_add(I16 x) {
#if MOESAIC_AVX512
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(x));
#else
  int32_t a[16], sum = 0;
  store(a, x);
  for (const int32_t v : a) sum += v;
  return sum;
#endif
}

// a * b + c with one rounding.
inline F16 fma(F16 a, F16 b, F16 c) {
#if MOESAIC_AVX512
  return reinterpret_cast<F16>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif MOESAIC_AVX2
  return each<float>([](auto x, auto y, auto z) { return F16::Part(_mm256_fmadd_ps(x, y, z)); }, a, b, c);
#elif MOESAIC_NEON
  return each<float>([](auto x, auto y, auto z) { return F16::Part(vfmaq_f32(z, x, y)); }, a, b, c);
#else
  return each<float>(
      [](auto x, auto y, auto z) {
        for (int i = 0; i < 4; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
        return z;
      },
      a, b, c);
#endif
}

// Nearest integer, ties to even, for |x| < 2^22: the sum with 1.5 * 2^23 holds it in its low bits.
inline I16 to_int(F16 x) { return as_int(x + splat(12582912.0f)) - 0x4B400000; }

inline bool any_greater(F16 a, F16 b) {
#if MOESAIC_AVX512
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_GT_OQ) != 0;
#else
  const I16 greater = a > b;
  I16::Part any = greater.part[0];
  for (int i = 1; i < kParts; ++i) any |= greater.part[i];
#if MOESAIC_AVX2
  return _mm256_movemask_epi8(reinterpret_cast<__m256i>(any)) != 0;
#elif MOESAIC_NEON
  return vmaxvq_u32(reinterpret_cast<uint32x4_t>(any)) != 0;
#else
  return (any[0] | any[1] | any[2] | any[3]) != 0;
#endif
#endif
}

// Lanes in the range of the narrower integers, stored as those.
template <typename Int>
MOESAIC_INLINE void store_narrow(Int* p, const I16& x) {
#if MOESAIC_AVX512
  typedef Int Narrow __attribute__((vector_size(16 * sizeof(Int))));
  store(p, __builtin_convertvector(x, Narrow));
#else
  constexpr int kLanes = 16 / kParts;
  typedef Int Narrow __attribute__((vector_size(kLanes * sizeof(Int))));
  for (int i = 0; i < kParts; ++i) {
    const Narrow part = __builtin_convertvector(x.part[i], Narrow);
    std::memcpy(p + i * kLanes, &part, sizeof part);
  }
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

// The compiler takes x for changed here and holds it in a register, so it adds in the order that is written.
// GCC 12 reorders the products of a block until they spill; VPDPBUSD in 32 registers it leaves alone.
#if defined(__x86_64__)
#if MOESAIC_AVX512
constexpr bool kPinned = false;
template <typename V>
MOESAIC_INLINE void pin(V& x) {
  __asm__ volatile("" : "+v"(x));
}
#else
constexpr bool kPinned = true;
template <typename E>
MOESAIC_INLINE void pin(Lanes<E>& x) {
  for (int i = 0; i < kParts; ++i) __asm__ volatile("" : "+x"(x.part[i]));
}
#endif
#else
constexpr bool kPinned = false;
template <typename V>
MOESAIC_INLINE void pin(V&) {}
#endif

// dot4: acc[lane] += sum over i < 4 of w[4 * lane + i] * x[4 * lane + i]; x signed, w signed plus
// kWeightOffset. |x| <= 127. The offset's share is taken out by the task's bias. dot2: acc[lane] += a[2 *
// lane] * b[0] + a[2 * lane + 1] * b[1], int16; load_pairs orders a as it wants.
//
// VPDPBUSD wants unsigned weights. Without it VPMADDUBSW adds two products in 16 bits with saturation, so
// that 8-bit weights may carry no offset: |w| <= 128 unsigned times x with w's sign keeps them below 2 * 128
// * 127 = 32512.
#if MOESAIC_VNNI
constexpr int kWeightOffset = 128;
#else
constexpr int kWeightOffset = 0;
#endif
#if MOESAIC_AVX512
#if MOESAIC_VNNI
inline I16 dot4(I16 acc, Bytes w, I16 x) {
  return reinterpret_cast<I16>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(w), reinterpret_cast<__m512i>(x)));
}
inline I16 dot2(I16 acc, Shorts a, I16 b) {
  return reinterpret_cast<I16>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
#else
inline I16 dot2(I16 acc, Shorts a, I16 b) {
  return acc +
         reinterpret_cast<I16>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
inline I16 dot4(I16 acc, Bytes w, I16 x) {
  const auto ww = reinterpret_cast<__m512i>(w), xx = reinterpret_cast<__m512i>(x);
  const __m512i turned = _mm512_mask_sub_epi8(xx, _mm512_movepi8_mask(ww), _mm512_setzero_si512(), xx);
  return dot2(acc, reinterpret_cast<Shorts>(_mm512_maddubs_epi16(_mm512_abs_epi8(ww), turned)),
              reinterpret_cast<I16>(_mm512_set1_epi16(1)));
}
// sum[lane] += w[2 * lane] * x[2 * lane] + w[2 * lane + 1] * x[2 * lane + 1] modulo 2^16; w unsigned, at most
// 128.
inline Shorts dot_bytes(Shorts sum, Bytes w, I16 x) {
  const __m512i pairs = _mm512_maddubs_epi16(reinterpret_cast<__m512i>(w), reinterpret_cast<__m512i>(x));
  return reinterpret_cast<Shorts>(_mm512_add_epi16(reinterpret_cast<__m512i>(sum), pairs));
}
inline Shorts as_shorts(I16 x) { return reinterpret_cast<Shorts>(x); }
inline I16 add_pairs(Shorts sum) {
  return reinterpret_cast<I16>(_mm512_madd_epi16(reinterpret_cast<__m512i>(sum), _mm512_set1_epi16(1)));
}
#endif
using ShortPair = I16;
inline ShortPair splat_pair(const int16_t* p) { return splat_word(p); }
inline Shorts load_pairs(const int16_t* p) { return load<Shorts>(p); }
#else
#if MOESAIC_AVX2
#if MOESAIC_VNNI
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x) {
  const auto a = reinterpret_cast<__m256i>(acc), ww = reinterpret_cast<__m256i>(w),
             xx = reinterpret_cast<__m256i>(x);
#if defined(__AVXVNNI__)
  return reinterpret_cast<I16::Part>(_mm256_dpbusd_avx_epi32(a, ww, xx));
#else
  return reinterpret_cast<I16::Part>(_mm256_dpbusd_epi32(a, ww, xx));
#endif
}
MOESAIC_INLINE I16::Part dot2_part(I16::Part acc, Shorts::Part a, I16::Part b) {
  const auto sum = reinterpret_cast<__m256i>(acc), aa = reinterpret_cast<__m256i>(a),
             bb = reinterpret_cast<__m256i>(b);
#if defined(__AVXVNNI__)
  return reinterpret_cast<I16::Part>(_mm256_dpwssd_avx_epi32(sum, aa, bb));
#else
  return reinterpret_cast<I16::Part>(_mm256_dpwssd_epi32(sum, aa, bb));
#endif
}
#else
MOESAIC_INLINE I16::Part dot2_part(I16::Part acc, Shorts::Part a, I16::Part b) {
  return acc + reinterpret_cast<I16::Part>(
                   _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x) {
  const auto ww = reinterpret_cast<__m256i>(w), xx = reinterpret_cast<__m256i>(x);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(ww), _mm256_sign_epi8(xx, ww));
  return dot2_part(acc, reinterpret_cast<Shorts::Part>(pairs),
                   reinterpret_cast<I16::Part>(_mm256_set1_epi16(1)));
}
MOESAIC_INLINE Shorts dot_bytes(const Shorts& sum, const Bytes& w, const I16& x) {
  return each<int16_t>(
      [](auto acc, auto a, auto b) {
        const __m256i pairs =
            _mm256_maddubs_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
        return reinterpret_cast<Shorts::Part>(_mm256_add_epi16(reinterpret_cast<__m256i>(acc), pairs));
      },
      sum, w, x);
}
MOESAIC_INLINE Shorts as_shorts(const I16& x) {
  return each<int16_t>([](auto part) { return reinterpret_cast<Shorts::Part>(part); }, x);
}
MOESAIC_INLINE I16 add_pairs(const Shorts& sum) {
  return each<int32_t>(
      [](auto part) {
        return reinterpret_cast<I16::Part>(
            _mm256_madd_epi16(reinterpret_cast<__m256i>(part), _mm256_set1_epi16(1)));
      },
      sum);
}
#endif
#elif MOESAIC_NEON
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x) {
  const auto ww = reinterpret_cast<int8x16_t>(w), xx = reinterpret_cast<int8x16_t>(x);
#if MOESAIC_DOTPROD
  return vdotq_s32(acc, ww, xx);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(ww), vget_low_s8(xx)));
  return acc + vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(ww, xx)));
#endif
}
#elif defined(__SSE2__)
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
MOESAIC_INLINE I16 dot4(const I16& acc, const Bytes& w, const I16& x) {
  return each<int32_t>([](auto a, auto b, auto c) { return dot4_part(a, b, c); }, acc, w, x);
}
#if MOESAIC_NEON
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
#else
using ShortPair = I16;
MOESAIC_INLINE ShortPair splat_pair(const int16_t* p) { return splat_word(p); }
MOESAIC_INLINE Shorts load_pairs(const int16_t* p) { return load<Shorts>(p); }
MOESAIC_INLINE I16 dot2(const I16& acc, const Shorts& a, const ShortPair& b) {
  return each<int32_t>([](auto x, auto y, auto z) { return dot2_part(x, y, z); }, acc, a, b);
}
#endif
#endif

// Doubled E2M1 values are so small that VPMADDUBSW's sums can stay in 16 bits for a whole block, and then
// they may carry an offset: BlockSum<true> in kernels_dots.h.
#if (MOESAIC_AVX512 || MOESAIC_AVX2) && !MOESAIC_VNNI
#define MOESAIC_SHORT_SUMS 1
constexpr int kE2m1Offset = 12;
#else
constexpr int kE2m1Offset = kWeightOffset;
#endif

// Sixteen E2M1 codes (0..15 in each byte) to twice their value plus kE2m1Offset.
alignas(64) constexpr uint8_t kE2m1Table[64] = {
#define MOESAIC_E2M1(v) static_cast<uint8_t>((v) + kE2m1Offset)
#define MOESAIC_E2M1_ROW                                                                                \
  MOESAIC_E2M1(0), MOESAIC_E2M1(1), MOESAIC_E2M1(2), MOESAIC_E2M1(3), MOESAIC_E2M1(4), MOESAIC_E2M1(6), \
      MOESAIC_E2M1(8), MOESAIC_E2M1(12), MOESAIC_E2M1(0), MOESAIC_E2M1(-1), MOESAIC_E2M1(-2),           \
      MOESAIC_E2M1(-3), MOESAIC_E2M1(-4), MOESAIC_E2M1(-6), MOESAIC_E2M1(-8), MOESAIC_E2M1(-12)
    MOESAIC_E2M1_ROW, MOESAIC_E2M1_ROW, MOESAIC_E2M1_ROW, MOESAIC_E2M1_ROW};
#undef MOESAIC_E2M1_ROW
#undef MOESAIC_E2M1

#if MOESAIC_AVX512
inline Bytes e2m1_weights(Bytes codes) {
  return reinterpret_cast<Bytes>(
      _mm512_shuffle_epi8(_mm512_load_si512(kE2m1Table), reinterpret_cast<__m512i>(codes)));
}
inline Bytes low_nibbles(Bytes b) { return b & 15; }
inline Bytes high_nibbles(Bytes b) {
  return reinterpret_cast<Bytes>(
      _mm512_and_si512(_mm512_srli_epi16(reinterpret_cast<__m512i>(b), 4), _mm512_set1_epi8(15)));
}
#else
MOESAIC_INLINE Bytes::Part e2m1_part(Bytes::Part codes) {
#if MOESAIC_AVX2
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(kE2m1Table));
  return reinterpret_cast<Bytes::Part>(_mm256_shuffle_epi8(table, reinterpret_cast<__m256i>(codes)));
#elif MOESAIC_NEON
  return vqtbl1q_u8(vld1q_u8(kE2m1Table), codes);
#else
  // 2 * value = m + [m > 4] + [m > 5] + 3 [m > 6] of the magnitude m; comparisons give -1.
  using Signed = int8_t __attribute__((vector_size(16)));
  const auto c = reinterpret_cast<Signed>(codes), m = c & int8_t{7};
  const Signed magnitude = m - (m > 4) - (m > 5) + ((m > 6) & int8_t{3}), negative = c > 7;
  return reinterpret_cast<Bytes::Part>((magnitude ^ negative) - negative);
#endif
}
MOESAIC_INLINE Bytes e2m1_weights(const Bytes& codes) {
  return each<uint8_t>([](auto part) { return e2m1_part(part); }, codes);
}
MOESAIC_INLINE Bytes low_nibbles(const Bytes& b) {
  return each<uint8_t>([](auto part) { return part & uint8_t{15}; }, b);
}
MOESAIC_INLINE Bytes high_nibbles(const Bytes& b) {
  return each<uint8_t>([](auto part) { return part >> uint8_t{4}; }, b);
}
#endif

// Sixteen bytes, halves or BF16 widened to lanes.
inline I16 widen_bytes(const uint8_t* p) {
#if MOESAIC_AVX512
  return reinterpret_cast<I16>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif MOESAIC_AVX2
  return each_index<int32_t>([p](int i) {
    return reinterpret_cast<I16::Part>(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i))));
  });
#elif MOESAIC_NEON
  const uint8x16_t b = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(b)), high = vmovl_high_u8(b);
  const auto part = [](uint32x4_t x) { return reinterpret_cast<I16::Part>(x); };
  return {{part(vmovl_u16(vget_low_u16(low))), part(vmovl_high_u16(low)), part(vmovl_u16(vget_low_u16(high))),
           part(vmovl_high_u16(high))}};
#else
  return each_index<int32_t>([p](int i) {
    return I16::Part{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
  });
#endif
}
#if !MOESAIC_AVX512 && !MOESAIC_AVX2 && !MOESAIC_NEON
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
#endif
inline F16 widen_halves(const uint8_t* p) {
#if MOESAIC_AVX512
  return reinterpret_cast<F16>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif MOESAIC_AVX2
  return each_index<float>([p](int i) {
    return F16::Part(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i)));
  });
#elif MOESAIC_NEON
  return each_index<float>(
      [p](int i) { return F16::Part(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)))); });
#else
  return each_index<float>([p](int i) {
    uint16_t h[4];
    std::memcpy(h, p + 8 * i, sizeof h);
    return F16::Part{half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3])};
  });
#endif
}
// Sixteen E4M3 codes (no NaN) to their values: exponent and mantissa moved into place, then scaled by 2^120.
inline F16 widen_e4m3(const uint8_t* p) {
  const I16 b = widen_bytes(p);
  return as_float(((b & 0x80) << 24) | ((b & 0x7F) << 20)) * splat(1.329227995784916e36f);
}
// Sixteen E2M1 codes, each the low bits of a word, likewise by 2^126.
inline F16 e2m1_values(I16 codes) {
  return as_float(((codes & 8) << 28) | ((codes & 7) << 22)) * splat(8.507059173023462e37f);
}

constexpr auto kHighHalf = static_cast<int32_t>(0xFFFF0000u);

// acc[lane] += w[2 * lane] * x[0] + w[2 * lane + 1] * x[1] in BF16 with float accumulation.
inline F16 dot2_bf16(F16 acc, const uint8_t* w, const uint16_t* x) {
#if MOESAIC_BF16
  return reinterpret_cast<F16>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(acc),
                                                reinterpret_cast<__m512bh>(load<I16>(w)),
                                                reinterpret_cast<__m512bh>(splat_word(x))));
#elif MOESAIC_BFDOT
  // Both products are added before they join the sum, rounded to odd, and subnormals are zero (unless
  // FPCR.EBF says otherwise, which Linux leaves off).
  const I16 pair = load<I16>(w), word = splat_word(x);
  return each<float>(
      [](auto sum, auto a, auto b) {
        return F16::Part(
            vbfdotq_f32(sum, reinterpret_cast<bfloat16x8_t>(a), reinterpret_cast<bfloat16x8_t>(b)));
      },
      acc, pair, word);
#elif MOESAIC_AVX2
  // Part by part: fewer registers are in use at a time. The word is shifted and masked as a vector; GCC would
  // do that in general registers.
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
#else
  const I16 pair = load<I16>(w), word = splat_word(x);
  acc = fma(as_float(pair << 16), as_float(word << 16), acc);
  return fma(as_float(pair & kHighHalf), as_float(word & kHighHalf), acc);
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
