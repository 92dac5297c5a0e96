// Operands of dense_decode's multiplying warps: activations in shared memory, a row of 16-bit numbers
// a token; a block of weights; sums.
#pragma once

#include "backend/cuda/kernels/common/gemm_tile.cuh"
#include "backend/cuda/kernels/common/norm.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"

namespace moesaic::cuda::sm90 {

inline constexpr int kTileTokens = 8;

// Bytes of a row's share of the contraction; two tokens' rows stand in different banks.
__host__ __device__ constexpr int row_stride(int blocks, int ranks) {
  return (blocks / ranks + 1) * kBlock * 2 + 64;
}

// The threads that multiply, the first of the CTA.
template <int kThreads>
__device__ inline void sync_multipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// Columns [first, end) of all tokens, by kThreads threads. kBulk: by bulk copies, which arrive on `landed`.
template <int kThreads, bool kBulk>
__device__ void copy_rows(const GemmParams& p, uint8_t* rows, int row_bytes, int first, int end,
                          uint64_t* landed) {
  if constexpr (kBulk) {
    const int bytes = (end - first) * 2;
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(landed, p.tokens * bytes);
      for (int row = 0; row < p.tokens; ++row)
        cp_async_bulk(rows + row * row_bytes, p.x + static_cast<int64_t>(row) * p.cols + first, bytes,
                      landed);
    }
    mbarrier_wait(landed, 0);
  } else {
    const int vectors = (end - first) / 8;
    for (int i = threadIdx.x; i < p.tokens * vectors; i += kThreads) {
      const int row = i / vectors, at = i % vectors;
      *reinterpret_cast<uint4*>(rows + row * row_bytes + at * 16) =
          reinterpret_cast<const uint4*>(p.x + static_cast<int64_t>(row) * p.cols + first)[at];
    }
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

// Reads a lane's part of a block in shared memory, or of its half m, which then stands as the first.
template <bool kWhole, class Source>
__device__ __forceinline__ void read(Source& w, uint32_t data, uint32_t scales, int m) {
#pragma unroll
  for (int i = 0; i < Source::kBlockBytes / (kWhole ? 512 : 1024); ++i)
    w.q[i] = ld_shared<uint4>(data + i * 512);
  if constexpr (Source::kScaled) {
    if (kWhole || m == 0) {
      w.s = ld_shared<decltype(w.s)>(scales);
    } else {
      w.set_upper_scales(ld_shared<typename Source::HalfScales>(scales + sizeof(w.s) / 2));
    }
  }
}

// The products of 32 rows, or of 16 (the first), with the tokens of all tiles. Two chains of MMAs where the
// block's scales do not part them anyway.
template <class Source, int kTiles>
struct DenseSums {
  static constexpr int kChains = Source::kScaled ? 1 : 2;
  float v[2][kTiles][kChains][4] = {};

  template <bool kWhole>
  __device__ __forceinline__ void add(const Source& w, const uint4 (&x)[kTiles]) {
#pragma unroll
    for (int m = 0; m < (kWhole ? 2 : 1); ++m) {
      const Fragment f0 = w.fragment(m, 0), f1 = w.fragment(m, 1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (Source::kScaled) {
          float d[4] = {};
          mma<Source::kBf16>(d, f0.a, x[t].x, x[t].y);
          mma<Source::kBf16>(d, f1.a, x[t].z, x[t].w);
#pragma unroll
          for (int i = 0; i < 4; ++i) v[m][t][0][i] = fmaf(d[i], w.scale(m, i / 2), v[m][t][0][i]);
        } else {
          mma<Source::kBf16>(v[m][t][0], f0.a, x[t].x, x[t].y);
          mma<Source::kBf16>(v[m][t][1], f1.a, x[t].z, x[t].w);
        }
      }
    }
  }
  __device__ float get(int m, int t, int i) const {
    return kChains > 1 ? v[m][t][0][i] + v[m][t][kChains - 1][i] : v[m][t][0][i];
  }
};

}  // namespace moesaic::cuda::sm90
