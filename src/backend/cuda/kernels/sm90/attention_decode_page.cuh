// attention_decode.cu: what a warp does with one page: the two products and the running softmax between them.
// Keys or dimensions are the MMA's 16 rows, query heads its 8 columns.
#pragma once

#include "backend/cuda/kernels/common/attention_parts.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/e4m3.cuh"
#include "backend/cuda/kernels/ptx/ldmatrix.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/kernels/sm90/attention.h"

namespace moesaic::cuda::attention_decode {

using namespace sm90;

inline constexpr int kWarps = 4, kThreads = kWarps * 32;
inline constexpr int kHeads = 8;   // heads of a CTA: the columns of an MMA
inline constexpr int kSlice = 32;  // dimensions that a warp finishes
inline constexpr int kKeyTiles = kPageTokens / 8;
inline constexpr int kEarlyPages = 3;  // pages of a warp not yet asked for when the successor may start

// A warp's results from its pages, where the ring was.
template <int D>
struct WarpResults {
  static constexpr int kStride = D + 4;  // no bank conflicts
  float values[kWarps][kHeads][kStride];
  Running stats[kWarps][kHeads];
};

__device__ inline uint32_t cluster_size() {
  uint32_t n;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return n;
}
__device__ inline uint32_t movmatrix_trans(uint32_t rows) {
  uint32_t columns;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}
// Over the lanes that hold the same columns.
__device__ inline float rows_max(float x) {
  for (int offset = 4; offset < 32; offset *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}
__device__ inline float rows_sum(float x) {
  for (int offset = 4; offset < 32; offset *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// ---- the two products, of a page ----

// FP8: dimensions and keys may be permuted freely along a contraction if both operands use the same order.
// A lane has D / 4 bytes of a key's row of up to 64 that lie together, four to an MMA, and keys 8 c .. 8 c +
// 7 of a dimension's, four to an MMA.
template <int D>
inline constexpr int kRowBytes = D < 64 ? D : 64;
// Word of a query (two dimensions) that stands in half `i` (0, 1) of step `step`.
template <int D, bool kFp8>
__device__ inline int query_word(int step, int i, int c) {
  if constexpr (!kFp8) return step * 8 + i * 4 + c;
  constexpr int kSteps = kRowBytes<D> / 16;
  return step / kSteps * (kRowBytes<D> / 2) + c * (kRowBytes<D> / 8) + step % kSteps * 2 + i;
}
// The key in row g of tile t.
template <bool kFp8>
__device__ inline int key_of(int t, int g) {
  return kFp8 ? g / 2 * 8 + 2 * t + g % 2 : 8 * t + g;
}

// F16's greatest number stands for what is beyond.
__device__ inline uint32_t bf16_to_f16(uint32_t pair) {
  const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  const auto limited = [](float x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); };
  return pack_f16(limited(v.x), limited(v.y));
}

// B fragments, steps of 16 dimensions: column g is head g.
template <int D, bool kFp8>
struct Queries {
  uint32_t q[D / 16][2];

  __device__ void load(const __nv_bfloat16* heads, int count, int lane) {
    const int g = lane / 4, c = lane % 4;
    const auto* from = reinterpret_cast<const uint32_t*>(heads) + g * (D / 2);
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t word = g < count ? from[query_word<D, kFp8>(step, i, c)] : 0;
        q[step][i] = kFp8 ? bf16_to_f16(word) : word;
      }
    }
  }
};

// Where in a page in shared memory a lane's operands begin: of K 16 keys and of V 16 dimensions further on
// they stand in the same places of their rows. In BF16 a step of 16 dimensions or keys along a row turns the
// same bits of the place over, whatever the row's permutation.
template <int D, bool kFp8>
struct PageOffsets {
  static constexpr int kDimensions = 16 * kPageTokens * (kFp8 ? 1 : 2);
  uint32_t k, v;

  __device__ explicit PageOffsets(int lane) {
    const int g = lane / 4, c = lane % 4, row = lane % 16, half = lane / 16 * 8;
    if constexpr (kFp8) {
      k = k8_at(D, key_of<true>(0, g), c * (kRowBytes<D> / 4)), v = v8_at(8 * c, g);
    } else {
      k = 2 * k_at(D, row, half), v = 2 * v_at(half, row);
    }
  }
  static __device__ uint32_t step(uint32_t at, int i) { return at ^ i * 32; }
};

__device__ inline void load_words(uint32_t (&to)[2], uint32_t at) {
  const uint2 v = ld_shared<uint2>(at);
  to[0] = v.x, to[1] = v.y;
}
__device__ inline void load_words(uint32_t (&to)[4], uint32_t at) {
  const uint4 v = ld_shared<uint4>(at);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
// A lane's part of a page: A fragments of 16 keys or dimensions each, FP8 as it stands in the page.
template <int D, bool kFp8>
struct PageFragments {
  static constexpr int kRowSteps = kRowBytes<D> / 16, kParts = D / kRowBytes<D>;
  uint32_t k[kKeyTiles / 2][kFp8 ? 2 * kParts : D / 16][kFp8 ? kRowSteps : 4];
  uint32_t v[D / 16][2][kFp8 ? 2 : 4];

  __device__ void load_keys(uint32_t keys, const PageOffsets<D, kFp8>& places) {
#pragma unroll
    for (int m = 0; m < kKeyTiles / 2; ++m) {
      if constexpr (kFp8) {
        // Tiles 2 m and 2 m + 1: keys two apart.
#pragma unroll
        for (int i = 0; i < 2 * kParts; ++i)
          load_words(k[m][i], keys + places.k + (i / 2 * kPageTokens + 4 * m + i % 2 * 2) * kRowBytes<D>);
      } else {
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
          ldmatrix_x4(k[m][step], places.step(keys + places.k, step % kRowSteps) +
                                      (step / kRowSteps * kPageTokens + 16 * m) * (2 * kRowBytes<D>));
      }
    }
  }
  __device__ void load_values(uint32_t values, const PageOffsets<D, kFp8>& places) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t at = values + m * places.kDimensions;
        if constexpr (kFp8) {
          load_words(v[m][i], at + places.v + i * (places.kDimensions / 2));
        } else {
          ldmatrix_x4(v[m][i], places.step(at + places.v, i));
        }
      }
    }
  }

  // x[t][h]: of key_of(t, g) and head 2 c + h. Two chains of MMAs.
  __device__ void score(float (&x)[kKeyTiles][2], const Queries<D, kFp8>& queries) const {
#pragma unroll
    for (int m = 0; m < kKeyTiles / 2; ++m) {
      float s[2][4] = {};
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
        const auto& q = queries.q[step];
        if constexpr (kFp8) {
          const uint2 a = e4m3_to_f16(k[m][step / kRowSteps * 2][step % kRowSteps]),
                      b = e4m3_to_f16(k[m][step / kRowSteps * 2 + 1][step % kRowSteps]);
          mma<false>(s[step % 2], a.x, b.x, a.y, b.y, q[0], q[1]);
        } else {
          mma<true>(s[step % 2], k[m][step], q[0], q[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) x[2 * m + i / 2][i % 2] = s[0][i] + s[1][i];
    }
  }

  // acc[m][2 i + h] += weighted values: dimension 16 m + 8 i + g of head 2 c + h.
  __device__ void add_to(float (&acc)[D / 16][4], const uint32_t (&weights)[kKeyTiles]) const {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        if constexpr (kFp8) {
          const uint2 a = e4m3_to_f16(v[m][0][step]), b = e4m3_to_f16(v[m][1][step]);
          mma<false>(acc[m], a.x, b.x, a.y, b.y, weights[2 * step], weights[2 * step + 1]);
        } else {
          mma<true>(acc[m], v[m][step], weights[2 * step], weights[2 * step + 1]);
        }
      }
    }
  }
};

// A lane's sums over its warp's pages: heads 2 c and 2 c + 1, of sums its own keys'.
template <int D>
struct RowSums {
  float acc[D / 16][4] = {};
  Running of[2] = {Running::nothing(), Running::nothing()};

  // Scores become weights relative to the greatest score so far, to which all before them is brought:
  // B fragments, column g being head g.
  template <bool kFp8>
  __device__ void weigh(float (&x)[kKeyTiles][2], uint32_t (&weights)[kKeyTiles]) {
    const float scale = score_scale(D);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = x[0][h];
#pragma unroll
      for (int t = 1; t < kKeyTiles; ++t) top = fmaxf(top, x[t][h]);
      top = fmaxf(of[h].max, __fmul_rn(rows_max(top), scale));
      const float kept = exp2_fast(of[h].max - top);
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) x[t][h] = exp2_fast(fmaf(x[t][h], scale, -top)), sum += x[t][h];
      of[h] = {top, fmaf(of[h].sum, kept, sum)};
#pragma unroll
      for (int m = 0; m < D / 16; ++m) acc[m][h] *= kept, acc[m][2 + h] *= kept;
    }
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t)
      weights[t] = movmatrix_trans(kFp8 ? pack_f16(x[t][0], x[t][1]) : pack_bf16(x[t][0], x[t][1]));
  }

  __device__ void leave(WarpResults<D>& to, int warp, int lane) const {
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < D / 8; ++i) to.values[warp][2 * c + h][8 * i + g] = acc[i / 2][i % 2 * 2 + h];
      const float sum = rows_sum(of[h].sum);
      if (g == 0) to.stats[warp][2 * c + h] = {of[h].max, sum};
    }
  }
};

}  // namespace moesaic::cuda::attention_decode
