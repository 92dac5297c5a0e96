// y = W x for tiles of 8, 16 or 32 tokens by mma.sync: bound by the bytes of the weights.
//
// Maths    y[token, row] = factor * sum_k W[row, k] x[token, k], in the order of gemm_tile.cuh; then an
//          epilogue (epilogue.cuh).
// Shapes   weights in matrix.h's order, of one matrix or of all experts; x [.., cols] BF16 or F16, as the
//          weights' format wants it; of a work tile's permuted rows if grouped.
//
// Grid     x: weight tile; y: work tile, or tile of tokens
// CTA      8 warps: each streams one slice of the contraction from memory straight into registers, a few
//          blocks ahead; x comes from L2. Then all threads add the 8 slices in order and run the epilogue.
//
// Barriers one __syncthreads(), between the warps' sums and their use
// Ordering Dense weights are loaded before the wait for the predecessor; the list of work tiles, and what
//          depends on it, after.
// Resident No CTA waits for another.
//
// Bytes    weights once per tile of tokens; x once per weight tile, from L2. Shared memory: 8 warps x
//          tokens x 33 floats, 8 to 34 KB.
// Floor    bytes / bandwidth.
#pragma once

#include "backend/cuda/kernels/common/gemm_tile.cuh"

namespace moesaic::cuda {

inline constexpr int kSmallMWarps = kSlices;            // a warp a slice
inline constexpr int kRowStride = kWeightTileRows + 1;  // floats of a token's row in shared memory

// ---- the contraction ----

// Blocks that a warp holds, besides those in flight. More of them cost the second CTA of a
// multiprocessor its registers: four 2 KB blocks instead of two made the QKV projection 28% slower (H200).
template <class Source, int kTiles>
inline constexpr int kAhead = Source::kBlockBytes >= 2048 ? 2 : 4;

template <class Source, int kCount>
struct BlockStream {
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
__global__ void __launch_bounds__(kSmallMWarps * 32)
    gemm_small_m_kernel(const GemmParams p, const Epilogue epilogue) {
  extern __shared__ float partial[];  // [kSmallMWarps][8 * kTiles][kRowStride]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int weight_tile = blockIdx.x;
  const int first_block = slice_start(p.blocks, warp), end = slice_start(p.blocks, warp + 1);
  constexpr int kCount = kAhead<Source, kTiles>;
  BlockStream<Source, kCount> stream{p.data, p.scales, end};
  Source current[kCount];
  WorkTile work_tile{0, static_cast<int>(blockIdx.y) * 8 * kTiles, 0, 0};
  const auto open = [&](int expert) {
    const int64_t index = (static_cast<int64_t>(expert) * p.weight_tiles + weight_tile) * p.blocks;
    stream.data += index * Source::kBlockBytes;
    stream.scales += index * Source::kScaleBytes;
    stream.load(current, first_block, lane);
  };
  if (p.work_tiles == nullptr) {
    open(0);  // the weights do not depend on the kernel before
    wait_for_predecessor();
    work_tile.count = min(8 * kTiles, p.tokens - work_tile.first);
  } else {
    wait_for_predecessor();
    if (static_cast<int>(blockIdx.y) >= *p.work_tile_count) return;
    work_tile = p.work_tiles[blockIdx.y];
    open(work_tile.expert);
  }
  launch_dependents();

  const uint16_t* x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int token = t * 8 + g, permuted_row = work_tile.first + token;
    x[t] = token < work_tile.count
               ? p.x +
                     static_cast<int64_t>(p.rows != nullptr ? p.rows[permuted_row] : permuted_row) * p.cols +
                     8 * c
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
  for (int i = threadIdx.x; i < work_tile.count * (kWeightTileRows / 2); i += kSmallMWarps * 32) {
    const int pair = i % (kWeightTileRows / 2), token = i / (kWeightTileRows / 2);
    const float* at = partial + token * kRowStride + pair / 8 * 16 + pair % 8;
    float v0 = 0, v1 = 0;
#pragma unroll
    for (int w = 0; w < kSmallMWarps; ++w) v0 += at[w * kSlice], v1 += at[w * kSlice + 8];
    finish(epilogue, weight_tile, pair, work_tile.first + token, work_tile.expert, v0 * p.factor,
           v1 * p.factor);
  }
}

}  // namespace moesaic::cuda
