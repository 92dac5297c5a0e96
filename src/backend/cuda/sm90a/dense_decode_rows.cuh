// The activations of dense_decode in shared memory: a row of 16-bit numbers a token.
#pragma once

#include "backend/cuda/norm.cuh"
#include "backend/cuda/tile.cuh"

namespace moesaic::cuda::sm90a {

inline constexpr int kDenseRanks = 2;  // thread blocks that share a contraction

// Bytes of a row; two tokens' rows stand in different banks.
__host__ __device__ constexpr int row_stride(int blocks) {
  return (blocks / kDenseRanks + 1) * kBlock * 2 + 64;
}

// The threads that multiply, the first of the block.
template <int kThreads>
__device__ inline void sync_multipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// Columns [first, end) of all tokens, by kThreads.
template <int kThreads>
__device__ void copy_rows(const GemmParams& p, uint8_t* rows, int row_bytes, int first, int end) {
  const int vectors = (end - first) / 8;
  for (int i = threadIdx.x; i < p.tokens * vectors; i += kThreads) {
    const int row = i / vectors, at = i % vectors;
    *reinterpret_cast<uint4*>(rows + row * row_bytes + at * 16) =
        reinterpret_cast<const uint4*>(p.x + static_cast<int64_t>(row) * p.cols + first)[at];
  }
}

// The same of norm(x), of rows of up to kNormed elements. The weights are there before x is.
inline constexpr int kNormed = 4096;
template <int kThreads>
struct RowNorm {
  static constexpr int kLoads = kNormed / 4 / kThreads, kWarps = kThreads / 32;
  float4 weight[kLoads];

  __device__ explicit RowNorm(const Norm& p) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = j * kThreads + threadIdx.x;
      if (i < p.hidden / 4) weight[j] = __ldg(reinterpret_cast<const float4*>(p.weight) + i);
    }
  }
  // scratch: a float a warp and row
  __device__ void run(const Norm& p, float* scratch, uint8_t* rows, int row_bytes, int first, int end) const {
    for (int row = 0; row < p.rows; ++row, scratch += kWarps) {
      const int from = p.row_map != nullptr ? p.row_map[row] : row;
      const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(from) * p.hidden);
      float4 v[kLoads];
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int i = j * kThreads + threadIdx.x;
        v[j] = i < p.hidden / 4 ? x[i] : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
        squares =
            fmaf(v[j].x, v[j].x, fmaf(v[j].y, v[j].y, fmaf(v[j].z, v[j].z, fmaf(v[j].w, v[j].w, squares))));
      squares = warp_sum(squares);
      if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = squares;
      sync_multipliers<kThreads>();
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += scratch[w];
      const float mean = sum / static_cast<float>(p.hidden);
      if (!(mean <= 3.0e38f) && threadIdx.x == 0 && blockIdx.x == 0) atomicCAS(p.fault, 0, p.code);
      const float scale = rsqrtf(mean + p.eps);
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int i = j * kThreads + threadIdx.x;
        if (4 * i < first || 4 * i >= end) continue;
        const float4 a = v[j], w = weight[j];
        *reinterpret_cast<uint2*>(rows + row * row_bytes + (4 * i - first) * 2) = half_words(
            {a.x * scale * w.x, a.y * scale * w.y, a.z * scale * w.z, a.w * scale * w.w}, p.factor, p.bf16);
      }
    }
  }
};

}  // namespace moesaic::cuda::sm90a
