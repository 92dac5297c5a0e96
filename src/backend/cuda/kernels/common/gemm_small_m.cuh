// The matrix product for few tokens: one thread block computes one unit for a tile of 8 to 32 tokens; each of
// its 8 warps streams one slice of the contraction straight into registers, and the slices are added through
// shared memory.
//
//   grid: (units, jobs); shared memory: 8 warps x tokens of the tile x 33 floats
//   bytes: weights once per tile of tokens, activations once per unit (from L2)
#pragma once

#include "backend/cuda/kernels/common/gemm_tile.cuh"

namespace moesaic::cuda {

inline constexpr int kFewWarps = kSlices;     // a warp a slice
inline constexpr int kRowStride = kUnit + 1;  // floats of a token's row in shared memory

// ---- the contraction ----

// Blocks that a warp holds, besides those under way. More of them cost the second thread block of a
// multiprocessor its registers: four 2 KB blocks instead of two made the QKV projection 28% slower (H200).
template <class Source, int kTiles>
inline constexpr int kAhead = Source::kBlockBytes >= 2048 ? 2 : 4;

template <class Source, int kCount>
struct Stream {
  const uint8_t* data;
  const uint8_t* scales;
  int end;
  __device__ void load(Source (&s)[kCount], int block, int lane) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t b = block + i;
      if (b < end) s[i].load(data + b * Source::kBlockBytes, scales + b * Source::kScaleBytes, lane);
    }
  }
};

// To shared memory, [token][row].
template <class Source, int kTiles>
__device__ inline void store(const Sums<Source, kTiles>& sums, float* out, int g, int c) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[(t * 8 + 2 * c + i % 2) * kRowStride + 16 * m + i / 2 * 8 + g] = sums.v[m][t][i];
    }
  }
}

template <class Source, int kTiles, class Epilogue>
__global__ void __launch_bounds__(kFewWarps * 32) few_kernel(const GemmParams p, const Epilogue epilogue) {
  extern __shared__ float partial[];  // [kFewWarps][8 * kTiles][kRowStride]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int unit = blockIdx.x;
  const int first_block = slice_start(p.blocks, warp), end = slice_start(p.blocks, warp + 1);
  constexpr int kCount = kAhead<Source, kTiles>;
  Stream<Source, kCount> stream{p.data, p.scales, end};
  Source current[kCount];
  Job job{0, static_cast<int>(blockIdx.y) * 8 * kTiles, 0, 0};
  const auto open = [&](int expert) {
    const int64_t index = (static_cast<int64_t>(expert) * p.units + unit) * p.blocks;
    stream.data += index * Source::kBlockBytes;
    stream.scales += index * Source::kScaleBytes;
    stream.load(current, first_block, lane);
  };
  if (p.jobs == nullptr) {
    open(0);  // the weights do not depend on the kernel before
    wait_for_predecessor();
    job.count = min(8 * kTiles, p.tokens - job.first);
  } else {
    wait_for_predecessor();
    if (static_cast<int>(blockIdx.y) >= *p.job_count) return;
    job = p.jobs[blockIdx.y];
    open(job.expert);
  }
  launch_dependents();

  const uint16_t* x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int token = t * 8 + g, slot = job.first + token;
    x[t] = token < job.count
               ? p.x + static_cast<int64_t>(p.rows != nullptr ? p.rows[slot] : slot) * p.cols + 8 * c
               : nullptr;
  }
  Sums<Source, kTiles> sums;
  for (int b = first_block; b < end; b += kCount) {
    Source next[kCount];
    stream.load(next, b + kCount, lane);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (b + i >= end) break;
      uint4 v[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        v[t] = x[t] != nullptr ? *reinterpret_cast<const uint4*>(x[t] + (b + i) * kBlock)
                               : make_uint4(0, 0, 0, 0);
      sums.add(current[i], v);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) current[i] = next[i];
  }

  constexpr int kSlice = 8 * kTiles * kRowStride;
  store(sums, partial + warp * kSlice, g, c);
  __syncthreads();
  for (int i = threadIdx.x; i < job.count * (kUnit / 2); i += kFewWarps * 32) {
    const int pair = i % (kUnit / 2), token = i / (kUnit / 2);
    const float* at = partial + token * kRowStride + pair / 8 * 16 + pair % 8;
    float v0 = 0, v1 = 0;
#pragma unroll
    for (int w = 0; w < kFewWarps; ++w) v0 += at[w * kSlice], v1 += at[w * kSlice + 8];
    finish(epilogue, unit, pair, job.first + token, job.expert, v0 * p.factor, v1 * p.factor);
  }
}

}  // namespace moesaic::cuda
