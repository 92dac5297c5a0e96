// Integer dot products of a block of 32 weights: 16 rows of both panels of a pair with T tokens. BlockDots
// does that for all tokens of a tile: panel(p) returns panel p's. What instruction sets do differently stands
// here; integers are exact, so all of them give the same.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"

namespace moesaic::cpu {
namespace {

constexpr int kBlock = 32;

template <int T>
struct Dots {
  I16 of[T];  // [token]
};

#if MOESAIC_DOTPROD

// Dot products of 16 rows with T vectors: 4 * T accumulators.
template <int T>
class SdotTile {
 public:
  struct Operand {
    int8x16_t x[T];  // 16 contraction bytes
  };
  static MOESAIC_INLINE Operand operand(const int8_t* const (&x)[T], int64_t at) {
    Operand operand;
    for (int t = 0; t < T; ++t) operand.x[t] = vld1q_s8(x[t] + at);
    return operand;
  }
  // w[i]: bytes 8 * kHalf + 4i..+3 of the rows.
  template <int kHalf>
  MOESAIC_INLINE void add(const Bytes (&w)[2], const Operand& operand) {
    add_word<2 * kHalf>(w[0], operand);
    add_word<2 * kHalf + 1>(w[1], operand);
  }
  MOESAIC_INLINE I16 dot(int t) const { return dot_[t]; }

 private:
  template <int kWord>
  MOESAIC_INLINE void add_word(const Bytes& w, const Operand& operand) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const int8x16_t x = operand.x[t];
      dot_[t] = each<int32_t>(
          [x](auto acc, auto part) {
            return I16::Part(vdotq_laneq_s32(acc, reinterpret_cast<int8x16_t>(part), x, kWord));
          },
          dot_[t], w);
    }
  }
  I16 dot_[T] = {};
};

#if MOESAIC_I8MM

// smmla takes rows in pairs of 8 bytes: two words, zipped row by row. Part r % 4 of zipped[r / 4] holds rows
// 2r and 2r + 1.
MOESAIC_INLINE void zip_words(const Bytes (&w)[2], Bytes (&zipped)[2]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto a = reinterpret_cast<int32x4_t>(w[0].part[i]), b = reinterpret_cast<int32x4_t>(w[1].part[i]);
    zipped[i / 2].part[i % 2 * 2] = reinterpret_cast<Bytes::Part>(vzip1q_s32(a, b));
    zipped[i / 2].part[i % 2 * 2 + 1] = reinterpret_cast<Bytes::Part>(vzip2q_s32(a, b));
  }
}

// The same as SdotTile with half its multiplications: each accumulator holds 2 rows by 2 vectors. An odd T
// counts the last vector twice.
template <int T, bool kZipped>
class SmmlaTile {
  static constexpr int kPairs = (T + 1) / 2;

 public:
  struct Operand {
    int8x16_t x[2][kPairs];  // [half][pair]: 8 contraction bytes of two vectors
  };
  static MOESAIC_INLINE Operand operand(const int8_t* const (&x)[T], int64_t at) {
    Operand operand;
#pragma GCC unroll 4
    for (int u = 0; u < kPairs; ++u) {
      const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(x[2 * u] + at));
      const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(x[2 * u + 1 < T ? 2 * u + 1 : T - 1] + at));
      operand.x[0][u] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
      operand.x[1][u] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
    }
    return operand;
  }
  template <int kHalf>
  MOESAIC_INLINE void add(const Bytes (&w)[2], const Operand& operand) {
    Bytes zipped[2] = {w[0], w[1]};
    if constexpr (!kZipped) zip_words(w, zipped);
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      const auto rows = reinterpret_cast<int8x16_t>(zipped[r / 4].part[r % 4]);
#pragma GCC unroll 4
      for (int u = 0; u < kPairs; ++u) acc_[u][r] = vmmlaq_s32(acc_[u][r], rows, operand.x[kHalf][u]);
    }
  }
  MOESAIC_INLINE I16 dot(int t) const {
    const auto& acc = acc_[t / 2];
    return each_index<int32_t>([&](int i) {
      const int32x4_t a = acc[2 * i], b = acc[2 * i + 1];
      return I16::Part(t % 2 == 0 ? vuzp1q_s32(a, b) : vuzp2q_s32(a, b));
    });
  }

 private:
  int32x4_t acc_[kPairs][8] = {};
};

// Zipping for fewer than four vectors takes as many instructions as it saves.
template <int T, bool kZipped>
using DotTile = std::conditional_t<(T > 3 || kZipped), SmmlaTile<T, kZipped>, SdotTile<T>>;
constexpr bool kZipExpanded = true;
inline void store_words(uint8_t* out, const Bytes (&w)[2]) {
  Bytes zipped[2];
  zip_words(w, zipped);
  store(out, zipped[0]);
  store(out + 64, zipped[1]);
}

#else

template <int T, bool kZipped>
using DotTile = SdotTile<T>;
#endif

// Words j and j + 4 of MXFP4 share their bytes: they are used side by side.
template <int kHalf, typename Tile, typename Source>
MOESAIC_INLINE void add_words(Tile& tile, const Source& source, int p, int64_t b,
                              const typename Tile::Operand (&operands)[2]) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const int j = 4 * i + 2 * kHalf;
    const Bytes w[2] = {source.words(p, b, j), source.words(p, b, j + 1)};
    tile.template add<kHalf>(w, operands[i]);
  }
}

// One panel at a time: its 4 * T accumulators, the tokens' 2 * T registers and some weights fit 32 registers,
// both panels do not.
template <int T, typename Source>
class BlockDots {
  using Tile = DotTile<T, Source::kZipped>;

 public:
  MOESAIC_INLINE BlockDots(const Source& source, int64_t b, const int8_t* const (&x)[T],
                           const int32_t* const (&)[T])
      : source_(source), b_(b), operands_{Tile::operand(x, b * kBlock), Tile::operand(x, b * kBlock + 16)} {}
  MOESAIC_INLINE Dots<T> panel(int p) const {
    Tile tile;
    add_words<0>(tile, source_, p, b_, operands_);
    add_words<1>(tile, source_, p, b_, operands_);
    Dots<T> dots;
    for (int t = 0; t < T; ++t) dots.of[t] = tile.dot(t);
    return dots;
  }

 private:
  const Source& source_;
  int64_t b_;
  typename Tile::Operand operands_[2];
};

#else

// The sum of a block's products with one token, a word of four weights at a time, from its bias on.
template <bool kE2m1>
struct BlockSum {
  I16 sum;
  MOESAIC_INLINE void start(const int32_t* bias) { sum = kWeightOffset != 0 ? splat_word(bias) : I16{}; }
  MOESAIC_INLINE void add(const Bytes& w, const I16& x) {
    sum = dot4(sum, w, x);
    if constexpr (kPinned) pin(sum);
  }
  MOESAIC_INLINE I16 dot() const { return sum; }
};
#if MOESAIC_SHORT_SUMS
// Doubled E2M1 values are at most 12: two sums in 16 bits, of 16 products each, stay within 16 * 12 * 127 =
// 24384. The offset that makes the weights unsigned may wrap them on the way; the bias takes it out in the
// same arithmetic. So a word takes two instructions, where 8-bit weights take four.
template <>
struct BlockSum<true> {
  Shorts sum;
  MOESAIC_INLINE void start(const int32_t* bias) { sum = as_shorts(splat_word(bias)); }
  MOESAIC_INLINE void add(const Bytes& w, const I16& x) {
    sum = dot_bytes(sum, w, x);
    pin(sum);
  }
  MOESAIC_INLINE I16 dot() const { return add_pairs(sum); }
};
#endif

#if MOESAIC_AVX512

// Both panels at once: a token's word in every lane serves two dot products.
template <int T, typename Source>
class BlockDots {
 public:
  MOESAIC_INLINE BlockDots(const Source& source, int64_t b, const int8_t* const (&x)[T],
                           const int32_t* const (&bias)[T]) {
    for (int t = 0; t < T; ++t) {
      for (auto& panel : panels_) panel[t].start(bias[t] + b);
    }
    if constexpr (T == 1) {
      // A rolled loop keeps the loads in the order of memory, as prefetchers want them.
#pragma GCC unroll 1
      for (int j = 0; j < Source::kGroups; j += 2)
        add_groups(source, b, x, j), add_groups(source, b, x, j + 1);
    } else {
#pragma GCC unroll 8
      for (int j = 0; j < Source::kGroups; ++j) add_groups(source, b, x, j);
    }
  }
  MOESAIC_INLINE Dots<T> panel(int p) const {
    Dots<T> dots;
    for (int t = 0; t < T; ++t) dots.of[t] = panels_[p][t].dot();
    return dots;
  }

 private:
  // Both panels' group j: one word of each row, or two.
  MOESAIC_INLINE void add_groups(const Source& source, int64_t b, const int8_t* const (&x)[T], int j) {
#pragma GCC unroll 2
    for (int word = j; word < 8; word += Source::kGroups) {
      Bytes w[kPair];
      for (int p = 0; p < kPair; ++p) w[p] = source.words(p, b, word);
      for (int t = 0; t < T; ++t) {
        const I16 act = splat_word(x[t] + b * kBlock + word * 4);
        for (int p = 0; p < kPair; ++p) panels_[p][t].add(w[p], act);
      }
    }
  }

  BlockSum<Source::kE2m1> panels_[kPair][T];
};

#else

// One panel at a time: its accumulators of T tokens, two or four registers each, and some weights are what 16
// registers hold.
template <int T, typename Source>
class BlockDots {
 public:
  MOESAIC_INLINE BlockDots(const Source& source, int64_t b, const int8_t* const (&x)[T],
                           const int32_t* const (&bias)[T])
      : source_(source), b_(b), x_(x), bias_(bias) {}
  MOESAIC_INLINE Dots<T> panel(int p) const {
    BlockSum<Source::kE2m1> sums[T];
    for (int t = 0; t < T; ++t) sums[t].start(bias_[t] + b_);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const Bytes w = source_.words(p, b_, j);
      for (int t = 0; t < T; ++t) sums[t].add(w, splat_word(x_[t] + b_ * kBlock + j * 4));
    }
    Dots<T> dots;
    for (int t = 0; t < T; ++t) dots.of[t] = sums[t].dot();
    return dots;
  }

 private:
  const Source& source_;
  int64_t b_;
  const int8_t* const (&x_)[T];
  const int32_t* const (&bias_)[T];
};

#endif

#endif

#if !MOESAIC_I8MM
constexpr bool kZipExpanded = false;
inline void store_words(uint8_t* out, const Bytes (&w)[2]) {
  store(out, w[0]);
  store(out + 64, w[1]);
}
#endif

}  // namespace
}  // namespace moesaic::cpu
