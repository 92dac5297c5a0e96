// Sixteen lanes in kParts registers, two of AVX2 or four of 16 bytes: the files of those instruction sets
// have this in common. They define MOESAIC_PARTS before they include this one, and behind it the functions of
// a part, whose names end in _part.
//
// The compiler's own vectors of 64 bytes are no option here: GCC 12 takes them apart word by word through
// general registers (3.5 times the instructions of a tile on Arm).
#pragma once

#include <cstdint>
#include <cstring>

namespace moesaic::cpu {
namespace {

constexpr int kParts = MOESAIC_PARTS;

template <typename E>
struct Lanes {
  using Element = E;
  using Part [[gnu::vector_size(64 / kParts)]] = E;
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

inline int32_t reduce_add(I16 x) {
  int32_t a[16], sum = 0;
  store(a, x);
  for (const int32_t v : a) sum += v;
  return sum;
}
inline I16 splat_word(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return splat(word);
}
inline float max_by_halves(F16 x) {
  float a[16];
  store(a, x);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
  }
  return a[0];
}
// Lanes in the range of the narrower integers, stored as those.
template <typename Int>
MOESAIC_INLINE void store_narrow(Int* p, const I16& x) {
  constexpr int kLanes = 16 / kParts;
  using Narrow [[gnu::vector_size(kLanes * sizeof(Int))]] = Int;
  for (int i = 0; i < kParts; ++i) {
    const Narrow part = __builtin_convertvector(x.part[i], Narrow);
    std::memcpy(p + i * kLanes, &part, sizeof part);
  }
}

#if defined(__x86_64__)
constexpr bool kPinned = true;  // GCC 12 reorders the products of a block until they spill
template <typename E>
MOESAIC_INLINE void pin(Lanes<E>& x) {
  for (int i = 0; i < kParts; ++i) __asm__ volatile("" : "+x"(x.part[i]));
}
#else
constexpr bool kPinned = false;
template <typename V>
MOESAIC_INLINE void pin(V&) {}
#endif

MOESAIC_INLINE F16::Part fma_part(F16::Part a, F16::Part b, F16::Part c);
MOESAIC_INLINE bool any_part(I16::Part mask);
MOESAIC_INLINE Bytes::Part e2m1_part(Bytes::Part codes);
MOESAIC_INLINE I16::Part dot4_part(I16::Part acc, Bytes::Part w, I16::Part x);

// a * b + c with one rounding.
inline F16 fma(F16 a, F16 b, F16 c) {
  return each<float>([](auto x, auto y, auto z) { return fma_part(x, y, z); }, a, b, c);
}
inline bool any_greater(F16 a, F16 b) {
  const I16 greater = a > b;
  I16::Part any = greater.part[0];
  for (int i = 1; i < kParts; ++i) any |= greater.part[i];
  return any_part(any);
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
MOESAIC_INLINE I16 dot4(const I16& acc, const Bytes& w, const I16& x) {
  return each<int32_t>([](auto a, auto b, auto c) { return dot4_part(a, b, c); }, acc, w, x);
}
#if !MOESAIC_NEON
using ShortPair = I16;
MOESAIC_INLINE I16::Part dot2_part(I16::Part acc, Shorts::Part a, I16::Part b);
MOESAIC_INLINE ShortPair splat_pair(const int16_t* p) { return splat_word(p); }
MOESAIC_INLINE Shorts load_pairs(const int16_t* p) { return load<Shorts>(p); }
MOESAIC_INLINE I16 dot2(const I16& acc, const Shorts& a, const ShortPair& b) {
  return each<int32_t>([](auto x, auto y, auto z) { return dot2_part(x, y, z); }, acc, a, b);
}
#endif

}  // namespace
}  // namespace moesaic::cpu
