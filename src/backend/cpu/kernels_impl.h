// The kernels, written once over simd.h and compiled once per instruction set: a source file defines
// MOESAIC_ISA and includes this one with its own machine flags.
//
// Tiles: 2 panels by T tokens of accumulators stay in registers over the whole contraction (2 x 6 on
// AVX-512). Prefill expands an MXFP4 panel pair to bytes once (92 KB at K = 2880, which stays in L2) and runs
// all tokens over it; decode expands in registers as it streams.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"

namespace moesaic::cpu {
namespace {

constexpr int kBlock = 32;
constexpr int kExpandedBlock = 512;                   // bytes of 16 rows x 32 weights
constexpr int kExpandedStride = kExpandedBlock + 64;  // and their scales' exponents
#if MOESAIC_AVX512
constexpr int kTileTokens = 6;  // 2 x 6 int and 2 x 6 float accumulators of 32 registers
#else
constexpr int kTileTokens = 2;
#endif

// Sources of weights for the integer tile. words(p, b, j): bytes 4j..4j+3 of block b of the panel's 16 rows.
// factor(p, b, s): the block's scale times the activation's scale s, for 16 rows.
// E8M0 scales multiply by adding to the exponent: pack.cpp keeps them within 2^+-60 and quantize_row keeps s
// within 2^+-60, so the sum cannot leave float's range. Weights are doubled, hence 128 for the bias of 127.
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
  const PairTask& task;
  Bytes words(int p, int64_t b, int j) const {
    const Bytes codes = load<Bytes>(task.data + (b * kPair + p) * 256 + (j % 4) * 64);
    return e2m1_weights(j < 4 ? low_nibbles(codes) : high_nibbles(codes));
  }
  static constexpr bool kStreams = true;
  void prefetch(int64_t b) const {
    prefetch_weights(task.data + b * kPair * 256, kPair * 256);
    __builtin_prefetch(task.scales + b * kPair * 16 + kPrefetch / 16, 0, 0);
  }
  I16 scale(int p, int64_t b) const { return exponents(task.scales + (b * kPair + p) * 16); }
  static F16 factor(I16 scale, const float* s) { return scaled(scale, s); }
};

struct ExpandedSource {
  const uint8_t* data;
  int64_t stride;  // bytes from panel to panel
  static constexpr bool kStreams = false;
  Bytes words(int p, int64_t b, int j) const {
    return load<Bytes>(data + p * stride + b * kExpandedStride + j * 64);
  }
  I16 scale(int p, int64_t b) const {
    return load<I16>(data + p * stride + b * kExpandedStride + kExpandedBlock);
  }
  static F16 factor(I16 scale, const float* s) { return scaled(scale, s); }
};

struct Int8Source {
  const PairTask& task;
  Bytes words(int p, int64_t b, int j) const {
    return load<Bytes>(task.data + (b * kPair + p) * kExpandedBlock + j * 64);
  }
  static constexpr bool kStreams = true;
  void prefetch(int64_t b) const {
    prefetch_weights(task.data + b * kPair * kExpandedBlock, kPair * kExpandedBlock);
    __builtin_prefetch(task.scales + b * kPair * 32 + kPrefetch / 16, 0, 0);
  }
  F16 scale(int p, int64_t b) const { return widen_halves(task.scales + (b * kPair + p) * 32); }
  static F16 factor(F16 scale, const float* s) { return scale * splat(*s); }
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
    I16 dot[kPair][T];
    for (int t = 0; t < T; ++t) {
      for (int p = 0; p < kPair; ++p) dot[p][t] = kWeightOffset != 0 ? splat_word(bias[t] + b) : I16{};
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      Bytes w[kPair];
      for (int p = 0; p < kPair; ++p) w[p] = source.words(p, b, j);
      for (int t = 0; t < T; ++t) {
        const I16 word = splat_word(x[t] + b * kBlock + j * 4);
        for (int p = 0; p < kPair; ++p) dot[p][t] = dot4(dot[p][t], w[p], word);
      }
    }
    if constexpr (T <= 2 && Source::kStreams) {
      source.prefetch(b);
    }
    for (int p = 0; p < kPair; ++p) {
      const auto scale = source.scale(p, b);
      for (int t = 0; t < T; ++t)
        sum[p][t] = fma(to_float(dot[p][t]), Source::factor(scale, s[t] + b), sum[p][t]);
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
struct Mxfp8Source {
  static constexpr int kGroup = 1;
  using X = float;
  const PairTask& task;
  F16 words(int p, int64_t g) const {
    const I16 exponent = widen_bytes(task.scales + (g / kBlock * kPair + p) * 16) - 127;
    return widen_e4m3(task.data + (g * kPair + p) * 16) * as_float((exponent + 127) << 23);
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

// All tokens of a task through tiles of at most kTileTokens.
template <int T, typename Tile>
inline void last_tile(const Tile& tile, int first, int tokens) {
  if constexpr (T > 0) {
    if (tokens == T) return tile.template run<T>(first);
    last_tile<T - 1>(tile, first, tokens);
  }
}
template <typename Tile>
inline void all_tiles(const Tile& tile, int tokens) {
  int first = 0;
  for (; first + kTileTokens <= tokens; first += kTileTokens) tile.template run<kTileTokens>(first);
  last_tile<kTileTokens - 1>(tile, first, tokens - first);
}
template <typename Source>
struct IntTile {
  const Source& source;
  const PairTask& task;
  template <int T>
  void run(int first) const {
    int_tile<T>(source, task, first);
  }
};
template <typename Source>
struct FloatTile {
  const Source& source;
  const PairTask& task;
  template <int T>
  void run(int first) const {
    float_tile<T>(source, task, first);
  }
};
template <template <typename> typename Tile, typename Source>
inline void tiles(const Source& source, const PairTask& task) {
  all_tiles(Tile<Source>{source, task}, task.tokens);
}

ExpandedSource expand(const PairTask& task) {
  const int64_t blocks = task.act.cols / kBlock;
  const Mxfp4Source packed{task};
  for (int p = 0; p < kPair; ++p) {
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t* out = task.scratch + (p * blocks + b) * kExpandedStride;
      for (int j = 0; j < 8; ++j) store(out + j * 64, packed.words(p, b, j));
      store(out + kExpandedBlock, packed.scale(p, b));
    }
  }
  return {task.scratch, blocks * kExpandedStride};
}

void gemm(const PairTask& task) {
  switch (task.pack) {
    case Pack::kMxfp4:
      if (task.tokens <= kTileTokens) return tiles<IntTile>(Mxfp4Source{task}, task);
      return tiles<IntTile>(expand(task), task);
    case Pack::kInt8:
      return tiles<IntTile>(Int8Source{task}, task);
    case Pack::kBF16:
      return tiles<FloatTile>(Bf16Source{task}, task);
    case Pack::kF16:
      return tiles<FloatTile>(HalfSource{task}, task);
    case Pack::kF32:
      return tiles<FloatTile>(F32Source{task}, task);
    case Pack::kMxfp8:
      return tiles<FloatTile>(Mxfp8Source{task}, task);
  }
}

void quantize_row(const float* x, int64_t n, int8_t* q, float* scale, int32_t* bias) {
  // 2^+-60 bound the scale (see exponents()); a block below is zero, one above is caught as non-finite
  // before.
  constexpr float kSmallest = 8.67361737988403547e-19f, kLargest = 1.152921504606846976e18f;
  for (int64_t b = 0; b < n / kBlock; ++b) {
    const F16 low = load<F16>(x + b * kBlock), high = load<F16>(x + b * kBlock + 16);
    float s = reduce_max(max(abs(low), abs(high))) / 127.0f;
    const float inverse = s > kSmallest ? 1.0f / s : 0.0f;
    s = s < kSmallest ? kSmallest : s > kLargest ? kLargest : s;
    const I16 a = to_int(low * splat(inverse)), c = to_int(high * splat(inverse));
    int32_t sum = 0;
    using Quarter = int8_t __attribute__((vector_size(16)));
    store(q + b * kBlock, __builtin_convertvector(a, Quarter));
    store(q + b * kBlock + 16, __builtin_convertvector(c, Quarter));
    const I16 both = a + c;
    for (int i = 0; i < 16; ++i) sum += both[i];
    scale[b] = s;
    bias[b] = -kWeightOffset * sum;
  }
}

void to_bf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    out[i] = static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }
}

bool rmsnorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  F16 squares = {};
  for (int64_t i = 0; i < n; i += 16) {
    const F16 v = load<F16>(x + i);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(n);
  if (!(mean <= 3.0e38f)) return false;
  const F16 factor = splat(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t i = 0; i < n; i += 16) store(out + i, load<F16>(x + i) * factor * load<F16>(weight + i));
  return true;
}

void swiglu_tile(const float* tile, const float* gate_bias, const float* up_bias, int tokens, float alpha,
                 float limit, float* out, int64_t out_stride) {
  const F16 gb = load<F16>(gate_bias), ub = load<F16>(up_bias);
  for (int t = 0; t < tokens; ++t) {
    const F16 g = min(load<F16>(tile + t * 32) + gb, splat(limit));
    const F16 u = min(max(load<F16>(tile + t * 32 + 16) + ub, splat(-limit)), splat(limit));
    // sigmoid(z) = 1 / (1 + e^-z); through e^-|z| so that the exponential never overflows.
    const F16 z = g * splat(alpha);
    const F16 e = exp2_nonpositive(abs(z) * splat(-kLog2E));
    const F16 sigmoid = (z < splat(0.0f) ? e : splat(1.0f)) / (splat(1.0f) + e);
    store(out + t * out_stride, g * sigmoid * (u + splat(1.0f)));
  }
}

void combine(const float* const* y, const float* const* bias, const float* weight, int top_k, int64_t n,
             float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    F16 sum = load<F16>(out + i);
    for (int k = 0; k < top_k; ++k) {
      sum = fma(load<F16>(y[k] + i) + load<F16>(bias[k] + i), splat(weight[k]), sum);
    }
    store(out + i, sum);
  }
}

void rope(float* x, int heads, int head_dim, const float* cosine, const float* sine) {
  const int half = head_dim / 2;
  for (int h = 0; h < heads; ++h, x += head_dim) {
    for (int i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a * cosine[i] - b * sine[i];
      x[i + half] = b * cosine[i] + a * sine[i];
    }
  }
}

inline float amax(const float* x, int n) {
  F16 top = splat(1e-20f);
  for (int i = 0; i < n; i += 16) top = max(top, abs(load<F16>(x + i)));
  return reduce_max(top);
}

float quantize_int8(const float* x, int n, int8_t* q, int32_t* sum) {
  const float top = amax(x, n);
  const F16 inverse = splat(127.0f / top);
  I16 total = {};
  using Quarter = int8_t __attribute__((vector_size(16)));
  for (int i = 0; i < n; i += 16) {
    const I16 v = to_int(load<F16>(x + i) * inverse);
    total += v;
    store(q + i, __builtin_convertvector(v, Quarter));
  }
  *sum = 0;
  for (int i = 0; i < 16; ++i) *sum += total[i];
  return top / 127.0f;
}

float quantize_int16(const float* x, int n, int16_t* q) {
  const float top = amax(x, n);
  const F16 inverse = splat(static_cast<float>(kVLimit) / top);
  using Half = int16_t __attribute__((vector_size(32)));
  for (int i = 0; i < n; i += 16)
    store(q + i, __builtin_convertvector(to_int(load<F16>(x + i) * inverse), Half));
  return top / static_cast<float>(kVLimit);
}

// One page (32 keys) against H query heads: scores in 8-bit integers, online softmax, values in 16-bit
// integers. K page: [head_dim / 4][32 keys][4] int8 + offset; V page: [16][head_dim][2] int16, keys i and
// i + 16 in one word.
template <int H>
inline void page_scores(const AttendTask& task, const uint8_t* k, I16 (&dot)[H][2]) {
  for (int h = 0; h < H; ++h) dot[h][0] = dot[h][1] = splat(task.q_bias[h]);
  for (int d = 0; d < task.head_dim / 4; ++d) {
    const Bytes k0 = load<Bytes>(k + d * 128), k1 = load<Bytes>(k + d * 128 + 64);
    for (int h = 0; h < H; ++h) {
      const I16 word = splat_word(task.q + h * task.head_dim + 4 * d);
      dot[h][0] = dot4(dot[h][0], k0, word);
      dot[h][1] = dot4(dot[h][1], k1, word);
    }
  }
}

// Adds the page's values to 16 * G dimensions of H heads, from dimension d on.
template <int H, int G>
inline void page_values_at(const int16_t* p, const int16_t* v, int d, int head_dim, float factor,
                           float* acc) {
  I16 dot[H][G] = {};
  for (int pair = 0; pair < kPageTokens / 2; ++pair) {
    Shorts values[G];
    for (int g = 0; g < G; ++g) values[g] = load<Shorts>(v + pair * head_dim * 2 + d * 2 + g * 32);
    for (int h = 0; h < H; ++h) {
      const I16 word = splat_word(p + h * kPageTokens + 2 * pair);
      for (int g = 0; g < G; ++g) dot[h][g] = dot2(dot[h][g], values[g], word);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int g = 0; g < G; ++g) {
      float* out = acc + h * head_dim + d + g * 16;
      store(out, fma(to_float(dot[h][g]), splat(factor), load<F16>(out)));
    }
  }
}

template <int H>
inline void page_values(const int16_t* p, const int16_t* v, int head_dim, float factor, float* acc) {
  int d = 0;
  for (; d + 64 <= head_dim; d += 64) page_values_at<H, 4>(p, v, d, head_dim, factor, acc);
  for (; d < head_dim; d += 16) page_values_at<H, 1>(p, v, d, head_dim, factor, acc);
}

constexpr int kMaxHeadDim = 256, kMaxHeads = 8;

struct SoftmaxState {
  alignas(64) float acc[kMaxHeads * kMaxHeadDim];
  alignas(64) int16_t p[kMaxHeads * kPageTokens];  // keys i and i + 16 side by side
  float max[kMaxHeads];
  F16 sum[kMaxHeads];
};

// What the heads share of a page. Scores and their maximum are in units of log 2.
struct PageView {
  I16 out0, out1;    // lanes outside [first, last]
  F16 ks0, ks1;      // K's scales
  F16 unit0, unit1;  // V's scales in units of 2^-14 of the largest
  float factor;      // that unit
};

inline void raise_max(SoftmaxState& state, int h, float rise, int head_dim) {
  const F16 shrink = exp2_weight(splat(-rise));
  state.sum[h] *= shrink;
  for (int d = 0; d < head_dim; d += 16) {
    store(state.acc + h * head_dim + d, load<F16>(state.acc + h * head_dim + d) * shrink);
  }
  state.max[h] += rise;
}

// The page's scores of head h become weights in units of 2^-14, V's scales folded in.
inline void page_softmax(SoftmaxState& state, int h, float q_scale, const PageView& page, const I16 (&dot)[2],
                         int head_dim) {
  const F16 outside = splat(-1.0e30f), qs = splat(q_scale), below = splat(-state.max[h]);
  F16 s0 = page.out0 ? outside : fma(to_float(dot[0]), page.ks0 * qs, below);
  F16 s1 = page.out1 ? outside : fma(to_float(dot[1]), page.ks1 * qs, below);
  const F16 top = max(s0, s1);
  if (any_greater(top, F16{})) {
    const float rise = reduce_max(top);
    raise_max(state, h, rise, head_dim);
    s0 -= splat(rise), s1 -= splat(rise);
  }
  const F16 e0 = exp2_weight(s0), e1 = exp2_weight(s1);
  state.sum[h] += e0 + e1;
  store(state.p + h * kPageTokens, round_pairs(e0, page.unit0, e1, page.unit1));
}

inline PageView view_page(const AttendTask& task, int index, const float* ks, const float* vs) {
  const I16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const I16 p0 = lane + index * kPageTokens, p1 = p0 + 16;
  PageView page;
  page.out0 = (p0 < task.first) | (p0 > task.last);
  page.out1 = (p1 < task.first) | (p1 > task.last);
  page.ks0 = load<F16>(ks), page.ks1 = load<F16>(ks + 16);
  const F16 v0 = page.out0 ? F16{} : load<F16>(vs), v1 = page.out1 ? F16{} : load<F16>(vs + 16);
  const float top = reduce_max(max(max(v0, v1), splat(1e-30f)));
  const F16 unit = splat(static_cast<float>(kProbabilityOne) / top);
  page.unit0 = v0 * unit, page.unit1 = v1 * unit;
  page.factor = top * (1.0f / static_cast<float>(kProbabilityOne));
  return page;
}

template <int H>
void attend_heads(const AttendTask& task) {
  const int head_dim = task.head_dim;
  SoftmaxState state;
  float q_scale[H];
  for (int i = 0; i < H * head_dim; ++i) state.acc[i] = 0;
  for (int h = 0; h < H; ++h) {
    q_scale[h] = task.q_scale[h] * kLog2E;
    state.max[h] = task.sinks[h] * kLog2E;
    state.sum[h] = F16{};
    state.sum[h][0] = 1.0f;  // the sink's own e^0; it has no value
  }
  for (int index = task.first / kPageTokens; index <= task.last / kPageTokens; ++index) {
    const int64_t at = task.pages[index];
    const PageView page = view_page(task, index, task.k_scale + at * task.scale_page_stride,
                                    task.v_scale + at * task.scale_page_stride);
    I16 dot[H][2];
    page_scores<H>(task, task.k_cache + at * task.page_stride, dot);
    for (int h = 0; h < H; ++h) page_softmax(state, h, q_scale[h], page, dot[h], head_dim);
    const int16_t* v = task.v_cache + at * task.page_stride;
    constexpr int kHalf = H > 4 ? H / 2 : H;
    page_values<kHalf>(state.p, v, head_dim, page.factor, state.acc);
    if constexpr (H > kHalf)
      page_values<H - kHalf>(state.p + kHalf * kPageTokens, v, head_dim, page.factor,
                             state.acc + kHalf * head_dim);
  }
  for (int h = 0; h < H; ++h) {
    const F16 inverse = splat(1.0f / reduce_add(state.sum[h]));
    for (int d = 0; d < head_dim; d += 16)
      store(task.out + h * head_dim + d, load<F16>(state.acc + h * head_dim + d) * inverse);
  }
}

void attend(const AttendTask& task) {
  constexpr void (*kByHeads[])(const AttendTask&) = {attend_heads<1>, attend_heads<2>, attend_heads<3>,
                                                     attend_heads<4>, attend_heads<5>, attend_heads<6>,
                                                     attend_heads<7>, attend_heads<8>};
  kByHeads[task.heads - 1](task);
}

}  // namespace

#define MOESAIC_STRING_(x) #x
#define MOESAIC_STRING(x) MOESAIC_STRING_(x)
#define MOESAIC_JOIN_(a, b) a##b
#define MOESAIC_JOIN(a, b) MOESAIC_JOIN_(a, b)
extern const Kernels MOESAIC_JOIN(kKernels_, MOESAIC_ISA);
const Kernels MOESAIC_JOIN(kKernels_, MOESAIC_ISA) = {
    .name = MOESAIC_STRING(MOESAIC_ISA),
    .weight_offset = kWeightOffset,
    .gemm = gemm,
    .quantize_row = quantize_row,
    .to_bf16 = to_bf16,
    .rmsnorm = rmsnorm,
    .swiglu_tile = swiglu_tile,
    .combine = combine,
    .rope = rope,
    .quantize_int8 = quantize_int8,
    .quantize_int16 = quantize_int16,
    .attend = attend,
};

}  // namespace moesaic::cpu
