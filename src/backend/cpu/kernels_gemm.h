// Panel pairs times tokens.
//
// Tiles: 2 panels by T tokens of accumulators stay in registers over the whole contraction (2 x 6 on
// AVX-512). Prefill expands an MXFP4 panel pair to bytes once (92 KB at K = 2880, which stays in L2) and runs
// all tokens over it; decode expands in registers as it streams.
#pragma once

#include "backend/cpu/kernels_dots.h"

namespace moesaic::cpu {
namespace {

constexpr int kExpandedBlock = 512;                   // bytes of 16 rows x 32 weights
constexpr int kExpandedStride = kExpandedBlock + 64;  // and their scales' exponents
#if MOESAIC_AVX512
constexpr int kIntTokens = 6, kFloatTokens = 6;  // 2 x 6 int and 2 x 6 float accumulators of 32 registers
constexpr int kBf16Tokens = kFloatTokens;
#elif MOESAIC_AVX2
// See BlockDots; 2 x 2 float accumulators of 2 registers. Four tokens of BF16 spill some, but two wait for
// sums: 49 instead of 26 thousand million products a second on a Zen 4 core.
constexpr int kIntTokens = 4, kFloatTokens = 2, kBf16Tokens = 4;
#elif MOESAIC_DOTPROD
constexpr int kIntTokens = 4, kFloatTokens = 2;  // see BlockDots; 2 x 2 float accumulators of 4 registers
#if MOESAIC_BFDOT
constexpr int kBf16Tokens = 3;                   // 24 registers of sums, 4 of weights and 3 of activations
#else
constexpr int kBf16Tokens = kFloatTokens;
#endif
#else
constexpr int kIntTokens = 2, kFloatTokens = 2, kBf16Tokens = kFloatTokens;
#endif

// From how many tokens on MXFP4 is expanded. Where decoding takes few of a tile's instructions it is as fast
// with every tile (Zen 4, thousand million products a second of 7, 12, 24, 64 tokens: AVX-512 175, 202, 202,
// 201 against 124, 158, 177, 190 expanded; AVX2 101 throughout against 93, 100, 107, 113). Intel has two
// ports for 512 bits where decoding and products meet, hence an end to it.
#if MOESAIC_AVX512
constexpr int kExpandTokens = 33;
#elif MOESAIC_AVX2
constexpr int kExpandTokens = 13;
#else
constexpr int kExpandTokens = kIntTokens + 1;
#endif

// Sources of weights for the integer tile. words(p, b, j): bytes 4j..4j+3 of block b of the panel's 16 rows,
// or those that zip_words makes of two (kZipped). factor(scale(p, b), s): the block's scale times the
// activation's scale s, for 16 rows. E8M0 scales multiply by adding to the exponent: pack.cpp keeps them
// within 2^+-60 and quantize_row keeps s within 2^+-60, so the sum cannot leave float's range. Weights are
// doubled, hence 128 for the bias of 127.
inline I16 exponents(const uint8_t* scales) { return (widen_bytes(scales) - 128) << 23; }
inline F16 scaled(I16 exponent, const float* s) { return as_float(splat_word(s) + exponent); }

// Decode streams weights from memory: asking for them ahead keeps the requests going across the 4 KB pages
// where hardware prefetchers stop. They are read once: no other cache level should keep them (53.6 instead of
// 51.7 GB/s beside other programs).
constexpr int64_t kPrefetch = 4096;
inline void prefetch_weights(const uint8_t* p, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + kPrefetch + i, 0, 0);
}

struct Mxfp4Source {
  using Scale = I16;
  const PairTask& task;
  Bytes words(int p, int64_t b, int j) const {
    const Bytes codes = load<Bytes>(task.data + (b * kPair + p) * 256 + (j % 4) * 64);
    return e2m1_weights(j < 4 ? low_nibbles(codes) : high_nibbles(codes));
  }
  static constexpr bool kStreams = true, kZipped = false;
  static constexpr bool kE2m1 = true;
  void prefetch(int64_t b) const {
    prefetch_weights(task.data + b * kPair * 256, kPair * 256);
    __builtin_prefetch(task.scales + b * kPair * 16 + kPrefetch / 16, 0, 0);
  }
  I16 scale(int p, int64_t b) const { return exponents(task.scales + (b * kPair + p) * 16); }
  static F16 factor(I16 scale, const float* s) { return scaled(scale, s); }
};

struct Int8Source {
  using Scale = F16;
  const PairTask& task;
  Bytes words(int p, int64_t b, int j) const {
    return load<Bytes>(task.data + (b * kPair + p) * kExpandedBlock + j * 64);
  }
  static constexpr bool kStreams = true, kZipped = false;
  static constexpr bool kE2m1 = false;
  void prefetch(int64_t b) const {
    prefetch_weights(task.data + b * kPair * kExpandedBlock, kPair * kExpandedBlock);
    __builtin_prefetch(task.scales + b * kPair * 32 + kPrefetch / 16, 0, 0);
  }
  F16 scale(int p, int64_t b) const { return widen_halves(task.scales + (b * kPair + p) * 32); }
  static F16 factor(F16 scale, const float* s) { return scale * splat(*s); }
};

// Weights of another source, expanded to bytes.
template <typename Packed>
struct ExpandedSource {
  const uint8_t* data;
  int64_t stride;  // bytes from panel to panel
  static constexpr bool kStreams = false, kZipped = kZipExpanded;
  static constexpr bool kE2m1 = Packed::kE2m1;
  using Scale = typename Packed::Scale;
  Bytes words(int p, int64_t b, int j) const {
    return load<Bytes>(data + p * stride + b * kExpandedStride + j * 64);
  }
  Scale scale(int p, int64_t b) const {
    return load<Scale>(data + p * stride + b * kExpandedStride + kExpandedBlock);
  }
  static F16 factor(Scale scale, const float* s) { return Packed::factor(scale, s); }
};

// Not inlined: GCC 12 spills in the one big function otherwise (one token at 42 instead of 65 GB/s on a Zen 5
// core).
template <int T, typename Source>
__attribute__((noinline)) void int_tile(const Source& source, const PairTask& task, int first) {
  const int64_t blocks = task.act.cols / kBlock;
  const int8_t* x[T];
  const float* s[T];
  const int32_t* bias[T];
  for (int t = 0; t < T; ++t) {
    const int64_t row = task.rows != nullptr ? task.rows[first + t] : first + t;
    x[t] = static_cast<const int8_t*>(task.act.data) + row * task.act.cols;
    s[t] = task.act.scale + row * blocks;
    bias[t] = task.act.bias + row * blocks;
  }
  F16 sum[kPair][T] = {};
  for (int64_t b = 0; b < blocks; ++b) {
    const BlockDots<T, Source> block(source, b, x, bias);
    if constexpr (T <= 2 && Source::kStreams) source.prefetch(b);
    for (int p = 0; p < kPair; ++p) {
      const Dots<T> dots = block.panel(p);
      const auto scale = source.scale(p, b);
      for (int t = 0; t < T; ++t) {
        sum[p][t] = fma(to_float(dots.of[t]), Source::factor(scale, s[t] + b), sum[p][t]);
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < kPair; ++p) store(task.out + ((first + t) * kPair + p) * kPanel, sum[p][t]);
  }
}

// Sources for the float tile: step(p, g, x, acc) adds group g of the contraction for one token.
struct F32Source {
  static constexpr int kGroup = 1;
  using X = float;
  const PairTask& task;
  F16 words(int p, int64_t g) const { return load<F16>(task.data + (g * kPair + p) * 64); }
  static F16 step(F16 w, const float* x, F16 acc) { return fma(w, splat(*x), acc); }
};
struct HalfSource {
  static constexpr int kGroup = 1;
  using X = float;
  const PairTask& task;
  F16 words(int p, int64_t g) const { return widen_halves(task.data + (g * kPair + p) * 32); }
  static F16 step(F16 w, const float* x, F16 acc) { return fma(w, splat(*x), acc); }
};
// The E8M0 scales of 16 rows, none of them 0 or 255 (pack.cpp).
inline F16 block_scales(const PairTask& task, int p, int64_t b) {
  return as_float(widen_bytes(task.scales + (b * kPair + p) * 16) << 23);
}
struct Mxfp8Source {
  static constexpr int kGroup = 1;
  using X = float;
  const PairTask& task;
  F16 words(int p, int64_t g) const {
    return widen_e4m3(task.data + (g * kPair + p) * 16) * block_scales(task, p, g / kBlock);
  }
  static F16 step(F16 w, const float* x, F16 acc) { return fma(w, splat(*x), acc); }
};
// MXFP4 that meets F32: an element's nibble stands at the same place in all rows' words.
struct Mxfp4ValueSource {
  static constexpr int kGroup = 1;
  using X = float;
  const PairTask& task;
  F16 words(int p, int64_t g) const {
    const int64_t b = g / kBlock, j = g % 16 / 4;
    const int shift = static_cast<int>(g % 4 * 8 + g % kBlock / 16 * 4);
    const I16 codes = load<I16>(task.data + (b * kPair + p) * 256 + j * 64) >> shift;
    return e2m1_values(codes) * block_scales(task, p, b);
  }
  static F16 step(F16 w, const float* x, F16 acc) { return fma(w, splat(*x), acc); }
};
struct Bf16Source {
  static constexpr int kGroup = 2;
  using X = uint16_t;
  const PairTask& task;
  const uint8_t* words(int p, int64_t g) const { return task.data + (g * kPair + p) * 64; }
  static F16 step(const uint8_t* w, const uint16_t* x, F16 acc) { return dot2_bf16(acc, w, x); }
};

template <int T, typename Source>
inline void float_tile(const Source& source, const PairTask& task, int first) {
  using X = typename Source::X;
  const int64_t cols = task.act.cols;
  const X* x[T];
  for (int t = 0; t < T; ++t) {
    const int64_t row = task.rows != nullptr ? task.rows[first + t] : first + t;
    x[t] = static_cast<const X*>(task.act.data) + row * cols;
  }
  F16 sum[kPair][T] = {};
#pragma GCC unroll 4
  for (int64_t g = 0; g < cols / Source::kGroup; ++g) {
    for (int p = 0; p < kPair; ++p) {
      const auto w = source.words(p, g);
      for (int t = 0; t < T; ++t) sum[p][t] = Source::step(w, x[t] + g * Source::kGroup, sum[p][t]);
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < kPair; ++p) store(task.out + ((first + t) * kPair + p) * kPanel, sum[p][t]);
  }
}

// All tokens of a task through tiles of at most kMax.
template <int T, typename Run>
inline void last_tile(const Run& run, int first, int tokens) {
  if constexpr (T > 0) {
    if (tokens == T) return run.template operator()<T>(first);
    last_tile<T - 1>(run, first, tokens);
  }
}
template <int kMax, typename Run>
inline void all_tiles(int tokens, const Run& run) {
  int first = 0;
  for (; first + kMax <= tokens; first += kMax) run.template operator()<kMax>(first);
  last_tile<kMax - 1>(run, first, tokens - first);
}
template <typename Source>
inline void int_tiles(const Source& source, const PairTask& task) {
  all_tiles<kIntTokens>(task.tokens, [&]<int T>(int first) { int_tile<T>(source, task, first); });
}
template <typename Source>
inline void float_tiles(const Source& source, const PairTask& task) {
  constexpr int kTokens = Source::kGroup == 2 ? kBf16Tokens : kFloatTokens;
  all_tiles<kTokens>(task.tokens, [&]<int T>(int first) { float_tile<T>(source, task, first); });
}

template <typename Packed>
ExpandedSource<Packed> expand(const Packed& packed) {
  const PairTask& task = packed.task;
  const int64_t blocks = task.act.cols / kBlock;
  for (int p = 0; p < kPair; ++p) {
    for (int64_t b = 0; b < blocks; ++b) {
      if (p == 0) packed.prefetch(b);
      uint8_t* out = task.scratch + (p * blocks + b) * kExpandedStride;
      for (int j = 0; j < 8; j += 2) {
        const Bytes w[2] = {packed.words(p, b, j), packed.words(p, b, j + 1)};
        store_words(out + j * 64, w);
      }
      store(out + kExpandedBlock, packed.scale(p, b));
    }
  }
  return {task.scratch, blocks * kExpandedStride};
}

void gemm(const PairTask& task) {
  switch (task.pack) {
    case Pack::kMxfp4:
      if (task.act.format == Act::kF32) return float_tiles(Mxfp4ValueSource{task}, task);
      if (task.tokens < kExpandTokens) return int_tiles(Mxfp4Source{task}, task);
      return int_tiles(expand(Mxfp4Source{task}), task);
    case Pack::kInt8:
      // They are bytes already; only zipping them once pays.
      if (!kZipExpanded || task.tokens <= kIntTokens) return int_tiles(Int8Source{task}, task);
      return int_tiles(expand(Int8Source{task}), task);
    case Pack::kBF16:
      return float_tiles(Bf16Source{task}, task);
    case Pack::kF16:
      return float_tiles(HalfSource{task}, task);
    case Pack::kF32:
      return float_tiles(F32Source{task}, task);
    case Pack::kMxfp8:
      return float_tiles(Mxfp8Source{task}, task);
  }
}

}  // namespace
}  // namespace moesaic::cpu
