// How a CTA makes the work list: (row, choice) pairs are permuted into groups by expert, and each expert's
// group is cut into work tiles.
//
// Maths    permuted row of a pair = pairs of lower experts + earlier pairs of its expert. Within an expert
//          the order of rows is kept, so the list does not depend on the order in which threads run.
// Shapes   Route (kernels/common/route.h) names the arrays. Pieces: an expert's rows in work tiles of `tile`
// rows, or
//          of about equal length (`even`); WorkTile::start adds up their widths. SmallPlan: up to 256
//          pairs.
// CTA      top_k_rows(): a warp a row. SmallPlan::plan(): a thread an expert, then a thread a pair; at
//          least as many threads as experts.
// Barriers __syncthreads() between the steps; all threads must call
// Ordering atomicOr on shared memory only sets bits: its order does not show. What is written to global
//          memory is there for other threads of the CTA after the next barrier, and for later kernels.
// Shared   SmallPlan: 36 bytes an expert
#pragma once

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/kernels/common/top_k.cuh"

namespace moesaic::cuda {

// ids: of all rows.
template <int kMostExperts>
__device__ void top_k_row(const Route& p, int row, int lane, int32_t* ids) {
  with_keys<kMostExperts>(p.experts, [&](auto keys) {
    keys.load(p.logits + static_cast<int64_t>(row) * p.experts, p.experts, lane);
    keys.choose(p.top_k, lane, ids + row * p.top_k, p.weights + row * p.top_k);
  });
}

// All rows, by one CTA: a warp reads its next row's logits while it chooses.
template <int kMostExperts>
__device__ void top_k_rows(const Route& p, int32_t* ids) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  with_keys<kMostExperts>(p.experts, [&](auto now) {
    auto next = now;
    const auto load = [&](auto& keys, int row) {
      if (row < p.rows) keys.load(p.logits + static_cast<int64_t>(row) * p.experts, p.experts, lane);
    };
    load(now, threadIdx.x / 32);
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < p.rows; row += warps) {
      load(next, row + warps);
      now.choose(p.top_k, lane, ids + row * p.top_k, p.weights + row * p.top_k);
      now = next;
    }
  });
  __syncthreads();
}

// The pieces of an expert's permuted rows.
struct Pieces {
  int size, full, last;
  __device__ Pieces(const Route& p, int count) {
    const int parts = (count + p.tile - 1) / p.tile;
    size = p.even && parts > 0 ? min(p.tile, tile_width((count + parts - 1) / parts)) : p.tile;
    full = count / size, last = count % size;
  }
  __device__ int work_tiles() const { return full + (last > 0); }
  __device__ int starts() const { return full * size + (last > 0 ? tile_width(last) : 0); }
  // first, start: of the expert's first work tile.
  __device__ void write(WorkTile* work_tiles, int expert, int first, int start) const {
    for (int j = 0; j < full; ++j) work_tiles[j] = {expert, first + j * size, size, start + j * size};
    if (last > 0) work_tiles[full] = {expert, first + full * size, last, start + full * size};
  }
};

// The work list of up to kSmallPlanPairs pairs in fewer steps than plan() in route.cu takes for any number of
// them.
constexpr int kSmallPlanPairs = 256;
template <int kExperts>
struct SmallPlan {
  alignas(16) uint32_t takers[kExperts][kSmallPlanPairs / 32];  // pairs that chose the expert: a bit a pair
  int first[kExperts];                                          // its first permuted row
  uint32_t sums[kExperts / 32 + 1];                             // sums over a warp's experts

  // All threads; before plan(), with a barrier between them.
  __device__ void clear(int experts) {
    for (int i = threadIdx.x; i < experts * (kSmallPlanPairs / 32); i += blockDim.x) takers[0][i] = 0;
  }
  // ids: of the pairs. What it writes is there after the next barrier.
  __device__ void plan(const Route& p, const int32_t* ids) {
    const int pairs = p.rows * p.top_k, expert = threadIdx.x, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) atomicOr(&takers[ids[i]][i / 32], 1u << i % 32);
    __syncthreads();
    int count = 0;
    for (int i = 0; i < kSmallPlanPairs / 32 && expert < p.experts; ++i) count += __popc(takers[expert][i]);
    const Pieces pieces(p, count);
    // Permuted rows, work tiles, starts: at most 256, 256, 4,095.
    const uint32_t mine = count | pieces.work_tiles() << 10 | static_cast<uint32_t>(pieces.starts()) << 20;
    uint32_t before = mine;
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint32_t below = __shfl_up_sync(~0u, before, offset);
      if (lane >= offset) before += below;
    }
    if (lane == 31 && expert / 32 <= (p.experts - 1) / 32) sums[expert / 32] = before;
    before -= mine;
    __syncthreads();
    if (expert < p.experts) {
      for (int w = 0; w < expert / 32; ++w) before += sums[w];
      const int permuted_row = before & 1023, work_tile = before >> 10 & 1023;
      first[expert] = permuted_row;
      pieces.write(p.work_tiles + work_tile, expert, permuted_row, before >> 20);
      if (expert == p.experts - 1) *p.work_tile_count = work_tile + pieces.work_tiles();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
      const uint32_t* bits = takers[ids[i]];
      int permuted_row = first[ids[i]] + __popc(bits[i / 32] & ((1u << i % 32) - 1));
      for (int w = 0; w < i / 32; ++w) permuted_row += __popc(bits[w]);
      p.permuted_rows[i] = permuted_row, p.source_rows[permuted_row] = i / p.top_k;
    }
  }
};

}  // namespace moesaic::cuda
