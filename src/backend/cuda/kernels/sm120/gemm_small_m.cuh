// y = W x for tiles of 8, 16 or 32 tokens by block-scaled MMA: bound by the bytes of the weights.
//
// Maths    y[token, row] = sum_k W[row, k] x[token, k], E2M1 or E4M3 weights times E4M3 activations, each
//          with a scale a block of 32; in the order of gemm.h: kSlices slices, added in order; then an
//          epilogue (epilogue.cuh).
// Shapes   quads of weights and of tokens (quad_layout.h); kGroups groups of 8 tokens
//
// Grid     x: kWeightTiles weight tiles of 32 rows; y: work tile
// CTA      4 warps: each streams one slice of the contraction through a ring of its own, tokens come from
//          L2 straight to registers, a quad ahead. Then all threads add the slices and run the epilogue.
//
// Barriers full[warp][stage]: the stage's bulk copy has landed. __syncthreads() before the sums reuse the
//          rings, and after the warps have stored them.
// Ordering A lane of the warp refills a stage when all lanes have read it into registers: each lane's reads
//          are behind a proxy fence, all lanes' behind __syncwarp(). Without the fence the copy can arrive
//          before they are done. Work tiles and weights are read before the wait for the predecessor
//          (Product says why), tokens after it.
// Resident No CTA waits for another.
//
// Bytes    weights once a work tile, tokens once for each CTA along x (from L2). Shared memory: 4 rings of
//          3 quads of E2M1, 26 KB, or 2 of E4M3, 34 KB, which the sums reuse.
// Floor    bytes / bandwidth.
#pragma once

#include "backend/cuda/kernels/sm120/epilogue.cuh"

namespace moesaic::cuda::sm120 {

inline constexpr int kSmallMWarps = kSlices;
template <Element kA>
inline constexpr int kSmallMStages = kA == Element::kE2M1 ? 3 : 2;
template <Element kA, int kGroups, int kWeightTiles>
inline constexpr size_t kSmallMShared = [] {
  constexpr size_t kRings = kSmallMWarps * kSmallMStages<kA> * weight_tile_quad_bytes(kA);
  constexpr size_t kSums = sizeof(float) * kSlices * kGroups * kGroup * kRowStride<kWeightTiles>;
  return kRings > kSums ? kRings : kSums;
}();

// CTAs a multiprocessor: 32 tokens take the registers of a third one, eight-bit weights its shared memory.
template <Element kA, int kGroups, int kWeightTiles>
inline constexpr int kSmallMBlocks = kA == Element::kE2M1&& kGroups* kWeightTiles <= 4 ? 3 : 2;

// A warp's stream of quads: of each in turn the kWeightTiles weight tiles.
template <Element kA, int kWeightTiles>
struct WeightRing {
  static constexpr int kStages = kSmallMStages<kA>, kStageBytes = weight_tile_quad_bytes(kA);
  const uint8_t* source;  // the first weight tile
  int64_t weight_tile_stride;
  uint8_t* stages;
  uint64_t* full;
  int blocks, first, steps;  // steps: (quad - first) * kWeightTiles + weight_tile

  __device__ void fetch(int step) const {
    if (step >= steps || threadIdx.x % 32 != 0) return;
    const int quad = first + step / kWeightTiles, stage = step % kStages;
    const int bytes = quad_bytes(kA, blocks_in_quad(blocks, quad));
    mbarrier_arrive_expect_tx(full + stage, bytes);
    cp_async_bulk(
        stages + stage * kStageBytes,
        source + step % kWeightTiles * weight_tile_stride + static_cast<int64_t>(quad) * kStageBytes, bytes,
        full + stage);
  }
  __device__ void start() const {
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kStages; ++i) mbarrier_init(full + i, 1);
      fence_mbarrier_init();
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kStages; ++i) fetch(i);
  }
  // Reads the step's quad into registers, and starts the copy of a later one to its place.
  __device__ WeightTileQuad<kA> take(int step) const {
    const int stage = step % kStages;
    mbarrier_wait(full + stage, step / kStages % 2);
    const WeightTileQuad<kA> quad(stages + stage * kStageBytes);
    fence_proxy_async();
    __syncwarp();
    fetch(step + kStages);
    return quad;
  }
};

// A quad of all groups of a work tile, straight from L2 to registers.
template <int kGroups>
struct TokenQuad {
  static constexpr int kVectors = kGroupVectors;
  uint4 v[kGroups][kVectors];
  uint32_t scales[1];
  // from: the work tile's first group; groups: that there are
  __device__ void load(const uint8_t* from, int64_t group_stride, int groups, int quad) {
    const int lane = threadIdx.x % 32;
    from += static_cast<int64_t>(quad) * kGroupQuadBytes;
#pragma unroll
    for (int t = 0; t < kGroups; ++t) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        v[t][i] = t < groups
                      ? reinterpret_cast<const uint4*>(from + t * group_stride + i * kLaneVectorBytes)[lane]
                      : make_uint4(0, 0, 0, 0);
    }
    const int group = min(lane % 4, groups - 1);
    scales[0] = reinterpret_cast<const uint32_t*>(from + group * group_stride + kGroupScales)[lane / 4];
  }
};

template <Element kA, int kGroups, int kWeightTiles, class Epilogue>
__global__ void __launch_bounds__(kSmallMWarps * 32, (kSmallMBlocks<kA, kGroups, kWeightTiles>))
    block_scaled_small_m_kernel(const Product p, const Epilogue epilogue) {
  static_assert(kSmallMBlocks<kA, kGroups, kWeightTiles> *
                    (kSmallMShared<kA, kGroups, kWeightTiles> + kBlockShared) <=
                kSmShared);
  using Ring = WeightRing<kA, kWeightTiles>;
  extern __shared__ __align__(128) uint8_t small_m_shared[];
  __shared__ uint64_t full[kSmallMWarps][Ring::kStages];
  const int warp = threadIdx.x / 32, quads = quads_of(p.blocks);
  const WorkTile work_tile = work_tile_of(p.tokens);
  if (work_tile.count == 0) return wait_for_predecessor();
  const int first_weight_tile = blockIdx.x * kWeightTiles,
            weight_tiles = min(kWeightTiles, p.weight_tiles - first_weight_tile);
  const int first = slice_start(quads, warp), end = slice_start(quads, warp + 1);
  // In place of a weight tile beyond the last the first one is read again; its sums are dropped.
  const Ring ring{.source = p.weight_tile(work_tile.expert, first_weight_tile),
                  .weight_tile_stride = weight_tiles == kWeightTiles ? p.weight_tile_stride : 0,
                  .stages = small_m_shared + warp * Ring::kStages * Ring::kStageBytes,
                  .full = full[warp],
                  .blocks = p.blocks,
                  .first = first,
                  .steps = (end - first) * kWeightTiles};
  ring.start();
  wait_for_predecessor();
  launch_dependents();
  const uint8_t* tokens = p.group(work_tile, 0);
  const int64_t group_stride = group_bytes(p.blocks);
  const int groups = p.groups(work_tile);
  GroupSums<kGroups> sums[kWeightTiles];
  TokenQuad<kGroups> next;
  if (first < end) next.load(tokens, group_stride, groups, first);
  for (int quad = first; quad < end; ++quad) {
    const TokenQuad<kGroups> x = next;
    if (quad + 1 < end) next.load(tokens, group_stride, groups, quad + 1);
    const ColumnScales<kGroups> columns(x.scales);
#pragma unroll
    for (int u = 0; u < kWeightTiles; ++u)
      multiply(
          sums[u], ring.take((quad - first) * kWeightTiles + u), [&](int t, int i) { return x.v[t][i]; },
          columns, blocks_in_quad(p.blocks, quad));
  }

  __syncthreads();
  auto* partial = reinterpret_cast<float*>(small_m_shared);
  constexpr int kSlice = kGroups * kGroup * kRowStride<kWeightTiles>;
#pragma unroll
  for (int u = 0; u < kWeightTiles; ++u) store<kWeightTiles>(sums[u], partial + warp * kSlice, u, 0);
  __syncthreads();
  finish<kWeightTiles, kSlices>(
      epilogue, TileSums{partial, kSlice, work_tile, first_weight_tile, weight_tiles, p.tokens.parts});
}

}  // namespace moesaic::cuda::sm120
