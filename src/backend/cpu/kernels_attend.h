// Attention of one token over the paged cache.
#pragma once

#include <algorithm>

#include "backend/cpu/kernels_dots.h"

namespace moesaic::cpu {
namespace {

// One page (32 keys) against H query heads: scores in 8-bit integers, online softmax, values in 16-bit
// integers. K page: [head_dim / 4][32 keys][4] int8 + offset; V page: [16][head_dim][2] int16, keys i and
// i + 16 in one word.
//
static_assert(kPageTokens == 32);

// run<n>(first) for H heads in runs of at most kMax.
template <int kMax, int H, int kFirst = 0, typename Run>
MOESAIC_INLINE void head_runs(const Run& run) {
  if constexpr (kFirst < H) {
    constexpr int kHeads = std::min(kMax, H - kFirst);
    run.template operator()<kHeads>(kFirst);
    head_runs<kMax, H, kFirst + kHeads>(run);
  }
}

// Heads [first, first + H) against the page's keys [16 * half, 16 * (half + N)).
#if MOESAIC_DOTPROD
template <int H, int N>
inline void page_scores_at(const AttendTask& task, const uint8_t* k, int first, int half, I16 (*dot)[2]) {
  static_assert(N == 1);
  using Tile = DotTile<H, false>;
  const int8_t* q[H];
  for (int h = 0; h < H; ++h) q[h] = task.q + (first + h) * task.head_dim;
  Tile tile;
  for (int d = 0; d < task.head_dim; d += 16) {
    const uint8_t* keys = k + d * kPageTokens + half * 64;
    const typename Tile::Operand operand = Tile::operand(q, d);
    tile.template add<0>({load<Bytes>(keys), load<Bytes>(keys + 128)}, operand);
    tile.template add<1>({load<Bytes>(keys + 256), load<Bytes>(keys + 384)}, operand);
  }
  for (int h = 0; h < H; ++h) dot[first + h][half] = tile.dot(h);
}
#else
template <int H, int N>
inline void page_scores_at(const AttendTask& task, const uint8_t* k, int first, int half, I16 (*dot)[2]) {
  I16 sum[H][N];
  for (int h = 0; h < H; ++h) {
    for (int n = 0; n < N; ++n) sum[h][n] = splat(task.q_bias[first + h]);
  }
  for (int d = 0; d < task.head_dim / 4; ++d) {
    Bytes keys[N];
    for (int n = 0; n < N; ++n) keys[n] = load<Bytes>(k + d * 128 + (half + n) * 64);
    for (int h = 0; h < H; ++h) {
      const I16 word = splat_word(task.q + (first + h) * task.head_dim + 4 * d);
      for (int n = 0; n < N; ++n) sum[h][n] = dot4(sum[h][n], keys[n], word);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int n = 0; n < N; ++n) dot[first + h][half + n] = sum[h][n];
  }
}
#endif

template <int H>
inline void page_scores(const AttendTask& task, const uint8_t* k, I16 (&dot)[H][2]) {
  for (int half = 0; half < 2; half += kScoreHalves) {
    head_runs<kScoreHeads, H>(
        [&]<int n>(int first) { page_scores_at<n, kScoreHalves>(task, k, first, half, dot); });
  }
}

// Adds the page's values to 16 * G dimensions of H heads, from dimension d on.
template <int H, int G>
inline void page_values_at(const int16_t* p, const int16_t* v, int d, int head_dim, float factor,
                           float* acc) {
  I16 dot[H][G] = {};
  for (int pair = 0; pair < kPageTokens / 2; ++pair) {
    Shorts values[G];
    for (int g = 0; g < G; ++g) values[g] = load_pairs(v + pair * head_dim * 2 + d * 2 + g * 32);
    for (int h = 0; h < H; ++h) {
      const ShortPair weights = splat_pair(p + h * kPageTokens + 2 * pair);
      for (int g = 0; g < G; ++g) dot[h][g] = dot2(dot[h][g], values[g], weights);
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
  for (; d + 16 * kValueGroups <= head_dim; d += 16 * kValueGroups)
    page_values_at<H, kValueGroups>(p, v, d, head_dim, factor, acc);
  for (; d < head_dim; d += 16) page_values_at<H, 1>(p, v, d, head_dim, factor, acc);
}

constexpr int kMaxHeadDim = 256, kMaxHeads = 8;

struct SoftmaxState {
  alignas(64) float acc[kMaxHeads * kMaxHeadDim];
  alignas(64) int16_t p[kMaxHeads * kPageTokens];  // keys i and i + 16 side by side
  float max[kMaxHeads];
  F16 sum[kMaxHeads];
};

// The part of a page that its heads share. Scores and their maximum are in units of log 2.
struct PageView {
  I16 out0, out1;    // lanes outside [first, last]
  F16 ks0, ks1;      // K's scales
  F16 unit0, unit1;  // V's scales in units of 2^-14 of the largest
  float factor;      // the unit of unit0 and unit1
};

inline void raise_max(SoftmaxState& state, int h, float rise, int head_dim) {
  const F16 shrink = exp2_weight(splat(-rise));
  state.sum[h] = state.sum[h] * shrink;
  for (int d = 0; d < head_dim; d += 16) {
    store(state.acc + h * head_dim + d, load<F16>(state.acc + h * head_dim + d) * shrink);
  }
  state.max[h] += rise;
}

// The page's scores of head h become weights in units of 2^-14, V's scales folded in.
inline void page_softmax(SoftmaxState& state, int h, float q_scale, const PageView& page, const I16 (&dot)[2],
                         int head_dim) {
  const F16 outside = splat(-1.0e30f), qs = splat(q_scale), below = splat(-state.max[h]);
  F16 s0 = select(page.out0, outside, fma(to_float(dot[0]), page.ks0 * qs, below));
  F16 s1 = select(page.out1, outside, fma(to_float(dot[1]), page.ks1 * qs, below));
  const F16 top = max(s0, s1);
  if (any_greater(top, F16{})) {
    const float rise = reduce_max(top);
    raise_max(state, h, rise, head_dim);
    s0 = s0 - splat(rise), s1 = s1 - splat(rise);
  }
  const F16 e0 = exp2_weight(s0), e1 = exp2_weight(s1);
  state.sum[h] = state.sum[h] + (e0 + e1);
  store(state.p + h * kPageTokens, round_pairs(e0, page.unit0, e1, page.unit1));
}

inline PageView view_page(const AttendTask& task, int index, const float* ks, const float* vs) {
  const I16 p0 = lane_numbers() + index * kPageTokens, p1 = p0 + 16;
  PageView page;
  page.out0 = (p0 < task.first) | (p0 > task.last);
  page.out1 = (p1 < task.first) | (p1 > task.last);
  page.ks0 = load<F16>(ks), page.ks1 = load<F16>(ks + 16);
  const F16 v0 = select(page.out0, F16{}, load<F16>(vs)), v1 = select(page.out1, F16{}, load<F16>(vs + 16));
  const float top = reduce_max(max(max(v0, v1), splat(1e-30f)));
  const F16 unit = splat(static_cast<float>(kProbabilityOne) / top);
  page.unit0 = v0 * unit, page.unit1 = v1 * unit;
  page.factor = top * (1.0f / static_cast<float>(kProbabilityOne));
  return page;
}

// Asks for a page of keys and of values: 6 KB in two runs too short for hardware prefetchers to notice.
inline void prefetch_page(const AttendTask& task, int index) {
  const int64_t at = task.pages[index] * task.page_stride;
  const uint8_t* k = task.k_cache + at;
  const auto* v = reinterpret_cast<const uint8_t*>(task.v_cache + at);
  for (int i = 0; i < kPageTokens * task.head_dim; i += 64) __builtin_prefetch(k + i);
  for (int i = 0; i < kPageTokens * task.head_dim * 2; i += 64) __builtin_prefetch(v + i);
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
    state.sum[h] = select(lane_numbers() < 1, splat(1.0f), F16{});  // the sink's own e^0; it has no value
  }
  for (int index = task.first / kPageTokens; index <= task.last / kPageTokens; ++index) {
    const int64_t at = task.pages[index];
    if (index < task.last / kPageTokens) prefetch_page(task, index + 1);
    const PageView page = view_page(task, index, task.k_scale + at * task.scale_page_stride,
                                    task.v_scale + at * task.scale_page_stride);
    I16 dot[H][2];
    page_scores<H>(task, task.k_cache + at * task.page_stride, dot);
    for (int h = 0; h < H; ++h) page_softmax(state, h, q_scale[h], page, dot[h], head_dim);
    const int16_t* v = task.v_cache + at * task.page_stride;
    head_runs<kValueHeads, H>([&]<int n>(int first) {
      page_values<n>(state.p + first * kPageTokens, v, head_dim, page.factor, state.acc + first * head_dim);
    });
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
}  // namespace moesaic::cpu
