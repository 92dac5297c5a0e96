// y = W x for tiles of 64 or 128 tokens by block-scaled MMA.
//
// Maths    as gemm_small_m.cuh, in the same order of sums: a warp adds up one slice after the other.
// Shapes   kWeightTiles weight tiles of 32 rows x kTokens tokens
//
// Grid     x: kWeightTiles weight tiles; y: work tile
// CTA      8 warps: each has one weight tile and its part of the tokens. A stage of the ring is a quad of
//          all weight tiles and tokens; the first warp starts the copies of weights, a lane each, and the
//          first lanes those of tokens.
//
// Barriers full[stage]: the stage's bulk copies have landed. One __syncthreads() a quad.
// Ordering A stage is refilled behind that barrier, when all warps have read it. Weights are fetched before
//          the wait for the predecessor, tokens after it.
// Resident No CTA waits for another.
//
// Bytes    weights once a work tile, tokens once for each CTA along x. Shared memory: kStages stages, which
//          the sums reuse (LargeMTile).
// Floor    max(bytes / bandwidth, 2 rows cols tokens / rate).
#pragma once

#include "backend/cuda/kernels/sm120/epilogue.cuh"

namespace moesaic::cuda::sm120 {

inline constexpr int kLargeMWarps = 8;

template <Element kA, int kTokens, int kWeightTiles, int kStages>
struct LargeMTile {
  static constexpr int kRing = kStages;
  static constexpr int kQuadBytes = weight_tile_quad_bytes(kA), kGroupBytes = kGroupQuadBytes;  // for a quad
  static constexpr int kAllGroups = kTokens / kGroup;
  static constexpr int kGroups = kAllGroups * kWeightTiles / kLargeMWarps;  // groups of a warp
  static constexpr int kTokenBegin = kWeightTiles * kQuadBytes;
  static constexpr int kStageBytes = kTokenBegin + kAllGroups * kGroupBytes;
  static constexpr size_t kSums = sizeof(float) * kTokens * kRowStride<kWeightTiles>;
  static constexpr size_t kShared = kStages * kStageBytes > kSums ? kStages* kStageBytes : kSums;
  static constexpr int kBlocks = 2 * (kShared + kBlockShared) <= kSmShared ? 2 : 1;  // in a multiprocessor
  static_assert(kShared + kBlockShared <= kSmShared && kWeightTiles <= 32 && kAllGroups <= 32);
};

// The first warp starts a stage's copies: a lane for each weight tile and each group of tokens.
template <Element kA, class Tile, int kWeightTiles>
struct Stages {
  const Product& p;
  WorkTile work_tile;
  int first_weight_tile, groups, quads;  // groups: that there are
  uint8_t* memory;
  uint64_t* full;

  __device__ uint8_t* stage(int quad) const { return memory + quad % Tile::kRing * Tile::kStageBytes; }
  __device__ uint64_t* barrier(int quad) const { return full + quad % Tile::kRing; }
  __device__ void fetch_weights(int quad) const {
    if (threadIdx.x >= 32 || quad >= quads) return;
    const int lane = threadIdx.x, bytes = quad_bytes(kA, blocks_in_quad(p.blocks, quad));
    if (lane == 0)
      mbarrier_arrive_expect_tx(barrier(quad), kWeightTiles * bytes + groups * Tile::kGroupBytes);
    __syncwarp();
    if (lane >= kWeightTiles) return;
    const int weight_tile = min(first_weight_tile + lane, p.weight_tiles - 1);
    cp_async_bulk(
        stage(quad) + lane * Tile::kQuadBytes,
        p.weight_tile(work_tile.expert, weight_tile) + static_cast<int64_t>(quad) * Tile::kQuadBytes, bytes,
        barrier(quad));
  }
  __device__ void fetch_tokens(int quad) const {
    const int group = threadIdx.x;
    if (group >= groups || quad >= quads) return;
    cp_async_bulk(stage(quad) + Tile::kTokenBegin + group * Tile::kGroupBytes,
                  p.group(work_tile, group) + static_cast<int64_t>(quad) * Tile::kGroupBytes,
                  Tile::kGroupBytes, barrier(quad));
  }
};

template <int kGroups>
__device__ inline void add_slice(GroupSums<kGroups>& sums, GroupSums<kGroups>& slice) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int t = 0; t < kGroups; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.v[m][t][i] += slice.v[m][t][i], slice.v[m][t][i] = 0;
    }
  }
}

template <Element kA, int kTokens, int kWeightTiles, int kStages, class Epilogue>
__global__ void __launch_bounds__(kLargeMWarps * 32,
                                  (LargeMTile<kA, kTokens, kWeightTiles, kStages>::kBlocks))
    block_scaled_large_m_kernel(const Product p, const Epilogue epilogue) {
  using Shape = LargeMTile<kA, kTokens, kWeightTiles, kStages>;
  constexpr int kGroups = Shape::kGroups;
  extern __shared__ __align__(128) uint8_t large_m_shared[];
  __shared__ uint64_t full[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quads = quads_of(p.blocks);
  const WorkTile work_tile = work_tile_of(p.tokens);
  if (work_tile.count == 0) return wait_for_predecessor();
  const int first_weight_tile = blockIdx.x * kWeightTiles, weight_tile = warp % kWeightTiles,
            first_group = warp / kWeightTiles * kGroups;
  const int groups = p.groups(work_tile);
  const Stages<kA, Shape, kWeightTiles> stages{
      p, work_tile, first_weight_tile, groups, quads, large_m_shared, full};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) mbarrier_init(full + i, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kStages; ++i) stages.fetch_weights(i);
  wait_for_predecessor();
  launch_dependents();
#pragma unroll
  for (int i = 0; i < kStages; ++i) stages.fetch_tokens(i);

  GroupSums<kGroups> sums, slice;
  for (int s = 0, quad = 0; s < kSlices; ++s) {
    for (const int end = slice_start(quads, s + 1); quad < end; ++quad) {
      const uint8_t* stage = stages.stage(quad);
      mbarrier_wait(full + quad % kStages, quad / kStages % 2);
      if (first_group < groups) {
        const uint8_t* tokens = stage + Shape::kTokenBegin + first_group * Shape::kGroupBytes;
        uint32_t scales[(kGroups + 3) / 4];
#pragma unroll
        for (int i = 0; i < (kGroups + 3) / 4; ++i) {
          const int group = min(4 * i + lane % 4, kGroups - 1);
          scales[i] =
              reinterpret_cast<const uint32_t*>(tokens + group * Shape::kGroupBytes + kGroupScales)[lane / 4];
        }
        multiply(
            slice, WeightTileQuad<kA>(stage + weight_tile * Shape::kQuadBytes),
            [&](int t, int i) {
              return reinterpret_cast<const uint4*>(tokens + t * Shape::kGroupBytes +
                                                    i * kLaneVectorBytes)[lane];
            },
            ColumnScales<kGroups>(scales), blocks_in_quad(p.blocks, quad));
      }
      __syncthreads();
      stages.fetch_weights(quad + kStages);
      stages.fetch_tokens(quad + kStages);
    }
    add_slice(sums, slice);
  }

  auto* out = reinterpret_cast<float*>(large_m_shared);
  store<kWeightTiles>(sums, out, weight_tile, first_group);
  __syncthreads();
  finish<kWeightTiles, 1>(epilogue,
                          TileSums{out, 0, work_tile, first_weight_tile,
                                   min(kWeightTiles, p.weight_tiles - first_weight_tile), p.tokens.parts});
}

}  // namespace moesaic::cuda::sm120
