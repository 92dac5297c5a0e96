// Common parts of gemm_small_m.cuh and gemm_large_m.cuh: a quad of a weight tile times a quad of tokens, and
// the use of the sums.
#pragma once

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/ptx/block_scaled_mma.cuh"
#include "backend/cuda/kernels/ptx/bulk_copy.cuh"
#include "backend/cuda/kernels/sm120/operands.h"
#include "backend/cuda/kernels/sm120/work_tile.cuh"

namespace moesaic::cuda::sm120 {

using portable::cp_async_bulk;
using portable::fence_mbarrier_init;
using portable::fence_proxy_async;
using portable::mbarrier_arrive_expect_tx;
using portable::mbarrier_init;
using portable::mbarrier_wait;

// Shared memory of a multiprocessor of SM120 and SM121; what a CTA takes besides its dynamic shared memory:
// the system's part and the barriers.
inline constexpr size_t kSmShared = 100 * 1024, kBlockShared = 1024 + 128;

__host__ __device__ inline int slice_start(int quads, int slice) { return quads * slice / kSlices; }

// Work tiles, and weights for them, may be read before the predecessor has ended: it is expand() or a kernel
// after it, which starts its dependents only behind its own wait, when the kernel that wrote the list has
// ended.
struct Product {
  const uint8_t* weights;
  int64_t weight_tile_stride;  // bytes
  int weight_tiles, blocks;
  Tokens tokens;
  __device__ const uint8_t* weight_tile(int expert, int weight_tile) const {
    return weights + (static_cast<int64_t>(expert) * weight_tiles + weight_tile) * weight_tile_stride;
  }
  // The number of the work tile's groups, of all parts.
  __device__ int groups(const WorkTile& work_tile) const {
    return (work_tile.count + kGroup - 1) / kGroup * tokens.parts;
  }
  __device__ const uint8_t* group(const WorkTile& work_tile, int group) const {
    return tokens.data + (work_tile.start / kGroup * tokens.parts + group) * group_bytes(blocks);
  }
};

// A weight tile's quad in a warp's registers.
template <Element kA>
struct WeightTileQuad {
  static constexpr int kVectors = block_bytes(kA) / kLaneVectorBytes;  // vectors of a block
  uint4 block[kQuad][kVectors];  // blocks beyond the last are not used, or meet zeros
  uint32_t scales;
  // from: shared memory
  __device__ explicit WeightTileQuad(const uint8_t* from) {
    const int lane = threadIdx.x % 32;
    scales = reinterpret_cast<const uint32_t*>(from)[lane];
    const auto* vectors = reinterpret_cast<const uint4*>(from + kWeightTileScaleBytes) + lane;
#pragma unroll
    for (int b = 0; b < kQuad; ++b) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) block[b][i] = vectors[(b * kVectors + i) * 32];
    }
  }
  // Tile m of the step of block b.
  __device__ FragmentA fragment(int b, int m) const {
    if constexpr (kA == Element::kE4M3)
      return {{block[b][m].x, block[b][m].y, block[b][m].z, block[b][m].w}};
    else
      return fragment_of(words(b, m));
  }

 private:
  __device__ uint2 words(int b, int m) const {
    const uint4& v = block[b][0];
    return m == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w);
  }
};

// Sums of a weight tile and kGroups groups: [tile m][group], as the MMA leaves them.
template <int kGroups>
struct GroupSums {
  float v[2][kGroups][4] = {};
};

template <Element kA, int kStep, int kColumn, int kGroups>
__device__ inline void multiply_groups(GroupSums<kGroups>& sums, const FragmentA (&a)[2],
                                       const uint4 (&x)[kGroups], const RowScales& rows,
                                       const ColumnScales<kGroups>& columns) {
  constexpr bool kFirst = kStep % 2 == 0;  // the first of a vector's two steps
  const uint32_t b0 = kFirst ? x[kColumn].x : x[kColumn].z, b1 = kFirst ? x[kColumn].y : x[kColumn].w;
  mma<kA, kStep, 0, kColumn>(sums.v[0][kColumn], a[0], b0, b1, rows, columns);
  mma<kA, kStep, 1, kColumn>(sums.v[1][kColumn], a[1], b0, b1, rows, columns);
  if constexpr (kColumn + 1 < kGroups) multiply_groups<kA, kStep, kColumn + 1>(sums, a, x, rows, columns);
}

// The step of block kStep and those behind it; tokens(t, v): the lane's vector v of group t.
template <int kStep, Element kA, int kGroups, class Load>
__device__ inline void multiply_steps(GroupSums<kGroups>& sums, const WeightTileQuad<kA>& w,
                                      uint4 (&x)[kGroups], const Load& tokens, const RowScales& rows,
                                      const ColumnScales<kGroups>& columns, int blocks) {
  if (kStep >= blocks) return;
  constexpr int kVectorBlocks = kQuad / kGroupVectors, kNext = kStep + 1;
  if constexpr (kStep % kVectorBlocks == 0) {
#pragma unroll
    for (int t = 0; t < kGroups; ++t) x[t] = tokens(t, kStep / kVectorBlocks);
  }
  const FragmentA a[2] = {w.fragment(kStep, 0), w.fragment(kStep, 1)};
  multiply_groups<kA, kStep, 0>(sums, a, x, rows, columns);
  if constexpr (kNext < kQuad) multiply_steps<kNext>(sums, w, x, tokens, rows, columns, blocks);
}

// sums += quad of the weight tile times quad of the tokens, the first `blocks` blocks of it.
template <Element kA, int kGroups, class Load>
__device__ inline void multiply(GroupSums<kGroups>& sums, const WeightTileQuad<kA>& w, const Load& tokens,
                                const ColumnScales<kGroups>& columns, int blocks) {
  const RowScales rows(w.scales);
  uint4 x[kGroups];
  multiply_steps<0>(sums, w, x, tokens, rows, columns, blocks);
}

}  // namespace moesaic::cuda::sm120
