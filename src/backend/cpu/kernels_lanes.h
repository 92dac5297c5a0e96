// Sixteen lanes and their element-wise arithmetic, in the compiler's vector types: one AVX-512 register, two
// AVX2 ones or four of 16 bytes. Everything has internal linkage: this header is compiled several times with
// different machine flags, and no function may be shared between those.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#define MOESAIC_NEON 1
#endif

// One macro per property. MOESAIC_AVX512 and MOESAIC_AVX2: lanes of 512 or of 256 bits on x86; MOESAIC_VNNI:
// VPDPBUSD and VPDPWSSD in that width; MOESAIC_BF16: VDPBF16PS. MOESAIC_DOTPROD, _I8MM and _BFDOT: SDOT,
// SMMLA and BFDOT of Arm.
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
#define MOESAIC_AVX512 1
#if defined(__AVX512VNNI__)
#define MOESAIC_VNNI 1
#endif
#if defined(__AVX512BF16__)
#define MOESAIC_BF16 1
#endif
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MOESAIC_AVX2 1
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define MOESAIC_VNNI 1
#endif
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#define MOESAIC_DOTPROD 1
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define MOESAIC_I8MM 1
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define MOESAIC_BFDOT 1
#endif
#endif

#define MOESAIC_INLINE inline __attribute__((always_inline))

namespace moesaic::cpu {
namespace {

#if MOESAIC_AVX512

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

#else

// The compiler's own vectors of 64 bytes are no option here: GCC 12 takes them apart word by word through
// general registers (3.5 times the instructions of a tile on Arm).
#if MOESAIC_AVX2
constexpr int kParts = 2;
#else
constexpr int kParts = 4;
#endif

template <typename E>
struct Lanes {
  using Element = E;
  typedef E Part __attribute__((vector_size(64 / kParts)));
  Part part[kParts];
};
using F16 = Lanes<float>;
using I16 = Lanes<int32_t>;
using Bytes = Lanes<uint8_t>;
using Shorts = Lanes<int16_t>;

// op over the parts of its arguments; written out, because a loop would keep the lanes in memory.
template <typename E, typename Op, typename... L>
MOESAIC_INLINE Lanes<E> each(Op op, const L&... x) {
  if constexpr (kParts == 2) {
    return {{op(x.part[0]...), op(x.part[1]...)}};
  } else {
    return {{op(x.part[0]...), op(x.part[1]...), op(x.part[2]...), op(x.part[3]...)}};
  }
}
// op over part numbers.
template <typename E, typename Op>
MOESAIC_INLINE Lanes<E> each_index(Op op) {
  if constexpr (kParts == 2) {
    return {{op(0), op(1)}};
  } else {
    return {{op(0), op(1), op(2), op(3)}};
  }
}
template <typename E>
MOESAIC_INLINE Lanes<E> all(E x) {
  return each_index<E>([&](int) { return x - typename Lanes<E>::Part{}; });  // 0 + x would turn -0 into 0
}

template <typename V, typename T>
MOESAIC_INLINE V load(const T* p) {
  using Part = typename V::Part;
  return each_index<typename V::Element>([&](int i) {
    Part part;
    std::memcpy(&part, reinterpret_cast<const uint8_t*>(p) + i * sizeof part, sizeof part);
    return part;
  });
}
template <typename T, typename E>
MOESAIC_INLINE void store(T* p, const Lanes<E>& v) {
  constexpr size_t kBytes = sizeof v.part[0];
  for (int i = 0; i < kParts; ++i)
    std::memcpy(reinterpret_cast<uint8_t*>(p) + i * kBytes, &v.part[i], kBytes);
}
MOESAIC_INLINE F16 splat(float x) { return all(x); }
MOESAIC_INLINE I16 splat(int32_t x) { return all(x); }

template <typename E>
MOESAIC_INLINE Lanes<E> operator+(const Lanes<E>& a, const Lanes<E>& b) {
  return each<E>([](auto x, auto y) { return x + y; }, a, b);
}
template <typename E>
MOESAIC_INLINE Lanes<E> operator-(const Lanes<E>& a, const Lanes<E>& b) {
  return each<E>([](auto x, auto y) { return x - y; }, a, b);
}
template <typename E>
MOESAIC_INLINE Lanes<E> operator*(const Lanes<E>& a, const Lanes<E>& b) {
  return each<E>([](auto x, auto y) { return x * y; }, a, b);
}
MOESAIC_INLINE F16 operator/(const F16& a, const F16& b) {
  return each<float>([](auto x, auto y) { return x / y; }, a, b);
}
MOESAIC_INLINE I16 operator|(const I16& a, const I16& b) {
  return each<int32_t>([](auto x, auto y) { return x | y; }, a, b);
}
MOESAIC_INLINE I16 operator&(const I16& a, const I16& b) {
  return each<int32_t>([](auto x, auto y) { return x & y; }, a, b);
}
MOESAIC_INLINE I16 operator+(const I16& a, int32_t b) { return a + splat(b); }
MOESAIC_INLINE I16 operator-(const I16& a, int32_t b) { return a - splat(b); }
MOESAIC_INLINE I16 operator&(const I16& a, int32_t b) { return a & splat(b); }
MOESAIC_INLINE I16 operator<<(const I16& a, int n) {
  return each<int32_t>([n](auto x) { return x << n; }, a);
}
MOESAIC_INLINE I16 operator>>(const I16& a, int n) {
  return each<int32_t>([n](auto x) { return x >> n; }, a);
}

// Comparisons give -1 in the lanes where they hold.
template <typename E>
MOESAIC_INLINE I16 operator<(const Lanes<E>& a, const Lanes<E>& b) {
  return each<int32_t>([](auto x, auto y) { return x < y; }, a, b);
}
template <typename E>
MOESAIC_INLINE I16 operator>(const Lanes<E>& a, const Lanes<E>& b) {
  return b < a;
}
MOESAIC_INLINE I16 operator<(const I16& a, int32_t b) { return a < splat(b); }
MOESAIC_INLINE I16 operator>(const I16& a, int32_t b) { return a > splat(b); }
MOESAIC_INLINE F16 select(const I16& mask, const F16& a, const F16& b) {
  return each<float>([](auto m, auto x, auto y) { return m ? x : y; }, mask, a, b);
}

MOESAIC_INLINE F16 to_float(const I16& x) {
  return each<float>([](auto part) { return __builtin_convertvector(part, F16::Part); }, x);
}
MOESAIC_INLINE F16 as_float(const I16& x) {
  return each<float>([](auto part) { return reinterpret_cast<F16::Part>(part); }, x);
}
MOESAIC_INLINE I16 as_int(const F16& x) {
  return each<int32_t>([](auto part) { return reinterpret_cast<I16::Part>(part); }, x);
}

#endif

}  // namespace
}  // namespace moesaic::cpu
