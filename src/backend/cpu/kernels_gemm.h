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

// Sources of weights for the integer tile. words(p, b, j): bytes 4j..4j+3 of block b of the panel's 16 rows,
// or those that zip_words makes of two (kZipped); words j and j + kGroups come from the same bytes.
// factor(scale(p, b), s): the block's scale times the activation's scale s, for 16 rows. E8M0 scales multiply
// by adding to the exponent: pack.cpp keeps them within 2^+-60 and quantize_row keeps s within 2^+-60, so the
// sum cannot leave float's range. Weights are doubled, hence 128 for the bias of 127.
inline I16 exponents(const uint8_t* scales) { return (widen_bytes(scales) - 128) << 23; }
inline F16 scaled(I16 exponent, const float* s) { return as_float(splat_word(s) + exponent); }

// run.operator()<hint>().
template <typename Run>
MOESAIC_INLINE void with_hint(Prefetch hint, const Run& run) {
  switch (hint) {
    case Prefetch::kNone:
      return run.template operator()<Prefetch::kNone>();
    case Prefetch::kT0:
      return run.template operator()<Prefetch::kT0>();
    case Prefetch::kT1:
      return run.template operator()<Prefetch::kT1>();
    case Prefetch::kNta:
      return run.template operator()<Prefetch::kNta>();
  }
}

// Decode streams weights from memory: asking for them ahead keeps the requests going across the 4 KB pages
// where hardware prefetchers stop. The hint is a template parameter, chosen once a task (gemm), so that the
// loops hold nothing but the instruction.
template <Prefetch kHint>
inline void prefetch_weights(const PairTask& task, int64_t at, int bytes) {
  const uint8_t* p = task.data + task.tuning.distance + at;
  for (int i = 0; i < bytes; i += 64) prefetch_line<kHint>(p + i);
}
// Integer formats have a sixteenth of their bytes in scales.
template <Prefetch kHint>
inline void prefetch_block(const PairTask& task, int64_t b, int bytes) {
  prefetch_weights<kHint>(task, b * bytes, bytes);
  prefetch_line<kHint>(task.scales + (task.tuning.distance >> 4) + b * (bytes / 16));
}

template <Prefetch kHint>
struct Mxfp4Source {
  using Plain = Mxfp4Source<Prefetch::kNone>;
  using Scale = I16;
  const PairTask& task;
  Bytes words(int p, int64_t b, int j) const {
    const Bytes codes = load<Bytes>(task.data + group_at<kGroups>(p, b, j % kGroups));
    return e2m1_weights(j < 4 ? low_nibbles(codes) : high_nibbles(codes));
  }
  static constexpr bool kZipped = false, kE2m1 = true;
  static constexpr int kGroups = kMxfp4Groups;
  void prefetch(int64_t b) const { prefetch_block<kHint>(task, b, kPair * 256); }
  I16 scale(int p, int64_t b) const { return exponents(task.scales + (b * kPair + p) * 16); }
  static F16 factor(I16 scale, const float* s) { return scaled(scale, s); }
};

#if MOESAIC_BF16
// The same for block floating point: a unit that is not a number makes none of the sum, which adding to its
// exponent would not.
template <Prefetch kHint>
struct BlockFloatSource : Mxfp4Source<kHint> {
  using Plain = BlockFloatSource<Prefetch::kNone>;
  using Scale = F16;
  F16 scale(int p, int64_t b) const {
    return as_float((widen_bytes(this->task.scales + (b * kPair + p) * kPanel) - 1) << 23);
  }
  static F16 factor(F16 scale, const float* unit) { return scale * splat(*unit); }
};
#endif

template <Prefetch kHint>
struct Int8Source {
  using Plain = Int8Source<Prefetch::kNone>;
  using Scale = F16;
  const PairTask& task;
  Bytes words(int p, int64_t b, int j) const { return load<Bytes>(task.data + group_at<kGroups>(p, b, j)); }
  static constexpr bool kZipped = false, kE2m1 = false;
  static constexpr int kGroups = kInt8Groups;
  void prefetch(int64_t b) const { prefetch_block<kHint>(task, b, kPair * kExpandedBlock); }
  F16 scale(int p, int64_t b) const { return widen_halves(task.scales + (b * kPair + p) * 32); }
  static F16 factor(F16 scale, const float* s) { return scale * splat(*s); }
};

// Weights of another source, expanded to bytes.
template <typename Packed>
struct ExpandedSource {
  using Plain = ExpandedSource;
  const PairTask& task;
  int64_t stride = task.act.cols / kBlock * kExpandedStride;  // bytes from panel to panel
  static constexpr bool kZipped = kZipExpanded, kE2m1 = Packed::kE2m1;
  static constexpr int kGroups = kInt8Groups;
  void prefetch(int64_t) const {}  // it stays in L2
  using Scale = typename Packed::Scale;
  Bytes words(int p, int64_t b, int j) const {
    return load<Bytes>(task.scratch + p * stride + b * kExpandedStride + j * 64);
  }
  Scale scale(int p, int64_t b) const {
    return load<Scale>(task.scratch + p * stride + b * kExpandedStride + kExpandedBlock);
  }
  static F16 factor(Scale scale, const float* s) { return Packed::factor(scale, s); }
};

// Not inlined: GCC 12 spills in the one big function otherwise (one token at 42 instead of 65 GB/s on a Zen 5
// core).
// kParts: how many int8 rows an activation row is the sum of: 1, or kBlockFloatParts.
template <int T, int kParts, typename Source>
__attribute__((noinline)) void int_tile(const Source& source, const PairTask& task, int first) {
  constexpr int kRows = kParts * T;
  const int64_t cols = task.act.cols, blocks = cols / kBlock;
  const auto* rows = static_cast<const int8_t*>(kParts == 1 ? task.act.data : task.act.parts);
  const int8_t* x[kRows];
  const float* s[T];
  const int32_t* bias[kRows];
  for (int t = 0; t < T; ++t) {
    const int64_t row = first + t;
    s[t] = task.act.scale + row * blocks;
    for (int i = 0; i < kParts; ++i) {
      x[kParts * t + i] = rows + row * task.act.stride + i * cols;
      bias[kParts * t + i] = task.act.bias + row * blocks;
    }
  }
  F16 sum[kPair][T] = {};
  for (int64_t b = 0; b < blocks; ++b) {
    const BlockDots<kRows, Source> block(source, b, x, bias);
    source.prefetch(b);
    for (int p = 0; p < kPair; ++p) {
      const Dots<kRows> dots = block.panel(p);
      const auto scale = source.scale(p, b);
      for (int t = 0; t < T; ++t) {
        I16 dot = dots.of[kParts * t];
        for (int i = 1; i < kParts; ++i) dot = dot + dots.of[kParts * t + i];
        sum[p][t] = fma(to_float(dot), Source::factor(scale, s[t] + b), sum[p][t]);
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < kPair; ++p) store(task.out + ((first + t) * kPair + p) * kPanel, sum[p][t]);
  }
}

// Float formats choose the hint once a chunk of weights: a branch that is always predicted, where five
// formats times all hints would be 100 KB of code.
constexpr int kAskBytes = 512;
inline void prefetch_chunk(const PairTask& task, int64_t at) {
  with_hint(task.tuning.prefetch, [&]<Prefetch kHint>() { prefetch_weights<kHint>(task, at, kAskBytes); });
}

// Sources for the float tile: step(p, g, x, acc) adds group g of the contraction for one token; a pair's
// group has kBytes. These widen weights to floats, a column at a time.
template <template <bool> typename Source, bool kFromMemory, int kGroupBytes>
struct ColumnSource {
  using Plain = Source<false>;
  static constexpr bool kAsks = kFromMemory;
  static constexpr int kGroup = 1, kBytes = kGroupBytes;
  using X = float;
  const PairTask& task;
  static F16 step(F16 w, const float* x, F16 acc) { return fma(w, splat(*x), acc); }
};
template <bool kFromMemory>
struct F32Source : ColumnSource<F32Source, kFromMemory, 128> {
  F16 words(int p, int64_t g) const { return load<F16>(this->task.data + (g * kPair + p) * 64); }
};
template <bool kFromMemory>
struct HalfSource : ColumnSource<HalfSource, kFromMemory, 64> {
  F16 words(int p, int64_t g) const { return widen_halves(this->task.data + (g * kPair + p) * 32); }
};
// The E8M0 scales of 16 rows, none of them 0 or 255 (pack.cpp).
inline F16 block_scales(const PairTask& task, int p, int64_t b) {
  return as_float(widen_bytes(task.scales + (b * kPair + p) * 16) << 23);
}
template <bool kFromMemory>
struct Mxfp8Source : ColumnSource<Mxfp8Source, kFromMemory, 32> {
  F16 words(int p, int64_t g) const {
    return widen_e4m3(this->task.data + (g * kPair + p) * 16) * block_scales(this->task, p, g / kBlock);
  }
};
// MXFP4 that meets F32: an element's nibble stands at the same place in all rows' words.
template <bool kFromMemory>
struct Mxfp4ValueSource : ColumnSource<Mxfp4ValueSource, kFromMemory, 16> {
  F16 words(int p, int64_t g) const {
    const int64_t b = g / kBlock, j = g % 16 / 4;
    const int shift = static_cast<int>(g % 4 * 8 + g % kBlock / 16 * 4);
    const I16 codes = load<I16>(this->task.data + group_at<kMxfp4Groups>(p, b, j)) >> shift;
    return e2m1_values(codes) * block_scales(this->task, p, b);
  }
};
template <bool kFromMemory>
struct Bf16Source {
  using Plain = Bf16Source<false>;
  static constexpr bool kAsks = kFromMemory;
  static constexpr int kGroup = 2, kBytes = 128;
  using X = uint16_t;
  const PairTask& task;
  const uint8_t* words(int p, int64_t g) const { return task.data + (g * kPair + p) * 64; }
  static F16 step(const uint8_t* w, const uint16_t* x, F16 acc) { return dot2_bf16(acc, w, x); }
};

#if MOESAIC_PANELS_APART
// Half as many accumulators as for both panels, so that weights are widened once for all tokens. Weights come
// from the caches: memory would be read with gaps (four tokens of a decoding step a sixth slower on a Zen 3).
// x: the tokens' rows.
template <int T, typename Source>
MOESAIC_INLINE void panel_tile(const Source& source, const PairTask& task, int first,
                               const typename Source::X* const (&x)[T]) {
  const int64_t groups = task.act.cols / Source::kGroup;
  for (int p = 0; p < kPair; ++p) {
    F16 sum[T] = {};
    for (int64_t g = 0; g < groups; ++g) {
      if constexpr (Source::kGroup == 2) {
        const Bf16Pairs w = widen_pairs(source.words(p, g));
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) sum[t] = dot2_bf16(sum[t], w, x[t] + 2 * g), pin(sum[t]);
      } else {
        const F16 w = source.words(p, g);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) sum[t] = fma(w, splat(x[t][g]), sum[t]), pin(sum[t]);
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) store(task.out + ((first + t) * kPair + p) * kPanel, sum[t]);
  }
}
#endif

template <int T, typename Source>
inline void float_tile(const Source& source, const PairTask& task, int first) {
  using X = typename Source::X;
  const int64_t cols = task.act.cols;
  const X* x[T];
  for (int t = 0; t < T; ++t) {
    x[t] = reinterpret_cast<const X*>(static_cast<const uint8_t*>(task.act.data) +
                                      (first + t) * task.act.stride);
  }
#if MOESAIC_PANELS_APART
  constexpr int kFewestApart = 3;  // fewer sums would wait for each other
  if constexpr (T >= kFewestApart && !Source::kAsks) return panel_tile<T>(source, task, first, x);
#endif
  F16 sum[kPair][T] = {};
  constexpr int64_t kChunk =
      kAskBytes / Source::kBytes;  // divides the groups: columns are whole blocks of 32
  for (int64_t at = 0; at < cols / Source::kGroup; at += kChunk) {
    if constexpr (Source::kAsks) prefetch_chunk(task, at * Source::kBytes);
#pragma GCC unroll 4
    for (int64_t g = at; g < at + kChunk; ++g) {
      for (int p = 0; p < kPair; ++p) {
        const auto w = source.words(p, g);
        for (int t = 0; t < T; ++t) sum[p][t] = Source::step(w, x[t] + g * Source::kGroup, sum[p][t]);
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < kPair; ++p) store(task.out + ((first + t) * kPair + p) * kPanel, sum[p][t]);
  }
}

template <int T, typename Run>
inline void last_tile(const Run& run, int first, int tokens) {
  if constexpr (T > 0) {
    if (tokens == T) return run.template operator()<T>(first);
    last_tile<T - 1>(run, first, tokens);
  }
}
// Runs all tokens of a task in tiles. The first tile has at most kFirst tokens and reads the weights from
// memory. The others have at most kMax and read them from the caches.
template <int kFirst, int kMax, typename Source, typename Run>
inline void all_tiles(const Source& source, int tokens, const Run& run) {
  if (tokens < kFirst) {
    return last_tile<kFirst - 1>([&]<int T>(int first) { run.template operator()<T>(source, first); }, 0,
                                 tokens);
  }
  const typename Source::Plain plain{source.task};
  const auto again = [&]<int T>(int first) { run.template operator()<T>(plain, first); };
  run.template operator()<kFirst>(source, 0);
  int first = kFirst;
  for (; first + kMax <= tokens; first += kMax) again.template operator()<kMax>(first);
  last_tile<kMax - 1>(again, first, tokens - first);
}
template <int kParts = 1, typename Source>
inline void int_tiles(const Source& source) {
  constexpr int kTokens = kIntTokens / kParts;
  all_tiles<kTokens, kTokens>(source, source.task.tokens, [&]<int T>(const auto& s, int first) {
    int_tile<T, kParts>(s, source.task, first);
  });
}
template <typename Source>
inline void float_tiles(const Source& source) {
  constexpr int kTokens = Source::kGroup == 2 ? kBf16Tokens : kFloatTokens;
#if MOESAIC_PANELS_APART
  constexpr int kFurther = kPanelTokens;
#else
  constexpr int kFurther = kTokens;
#endif
  all_tiles<kTokens, kFurther>(source, source.task.tokens, [&]<int T>(const auto& s, int first) {
    float_tile<T>(s, source.task, first);
  });
}

// Block by block, both panels: each byte of the packed ones is read once.
template <typename Packed>
ExpandedSource<typename Packed::Plain> expand(const Packed& packed) {
  const PairTask& task = packed.task;
  const int64_t blocks = task.act.cols / kBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    packed.prefetch(b);
    for (int p = 0; p < kPair; ++p) {
      uint8_t* out = task.scratch + (p * blocks + b) * kExpandedStride;
      for (int j = 0; j < 8; j += 2) {
        const Bytes w[2] = {packed.words(p, b, j), packed.words(p, b, j + 1)};
        store_words(out + j * 64, w);
      }
      store(out + kExpandedBlock, packed.scale(p, b));
    }
  }
  return {task};
}

inline bool expands_mxfp4(const PairTask& task) {
  return task.tokens >= (task.tuning.expand_tokens > 0 ? task.tuning.expand_tokens : kExpandTokens);
}

template <Prefetch kHint>
void int_gemm(const PairTask& task) {
#if MOESAIC_BF16
  // The tiles' numbers bit for bit: a block's sum is exact, and only the addition of blocks rounds, block by
  // block here as there.
  if (task.act.format == Act::kBlockFloat) return int_tiles<kBlockFloatParts>(BlockFloatSource<kHint>{task});
#endif
  if (task.format == Format::kMxfp4) {
    const Mxfp4Source<kHint> source{task};
    return expands_mxfp4(task) ? int_tiles(expand(source)) : int_tiles(source);
  }
  // They are bytes already; only zipping them once pays.
  const Int8Source<kHint> source{task};
  return !kZipExpanded || task.tokens <= kIntTokens ? int_tiles(source) : int_tiles(expand(source));
}

void float_gemm(const PairTask& task) {
  switch (task.format) {
    case Format::kMxfp4:
      return float_tiles(Mxfp4ValueSource<true>{task});
    case Format::kBF16:
      return float_tiles(Bf16Source<true>{task});
    case Format::kF16:
      return float_tiles(HalfSource<true>{task});
    case Format::kMxfp8:
      return float_tiles(Mxfp8Source<true>{task});
    default:  // kQ8_0 meets integers only
      return float_tiles(F32Source<true>{task});
  }
}

// The packed weights themselves are read by more than one tile.
inline bool reads_again(const PairTask& task) {
  if (task.act.format == Act::kBF16) return task.tokens > kBf16Tokens;
  if (task.act.format == Act::kF32) return task.tokens > kFloatTokens;
  if (task.act.format == Act::kBlockFloat) return task.tokens > kIntTokens / kBlockFloatParts;
  const bool expanded = task.format == Format::kMxfp4 ? expands_mxfp4(task) : kZipExpanded;
  return !expanded && task.tokens > kIntTokens;
}

[[maybe_unused]] void gemm(const PairTask& asked) {
  PairTask task = asked;
  // Then they are to stay in L2 from the first one on.
  if (task.tuning.prefetch == Prefetch::kNta && reads_again(task)) task.tuning.prefetch = Prefetch::kT0;
  if (task.act.format != Act::kInt8 && task.act.format != Act::kBlockFloat) return float_gemm(task);
#if MOESAIC_AVX512 || MOESAIC_AVX2 || MOESAIC_NEON
  with_hint(task.tuning.prefetch, [&]<Prefetch kHint>() { int_gemm<kHint>(task); });
#else
  int_gemm<Prefetch::kNone>(task);  // without vectors arithmetic is the limit
#endif
}

}  // namespace
}  // namespace moesaic::cpu
