// What the kernels for few and for many tokens share: a quad of a unit times a quad of tokens, and what
// becomes of the sums.
#pragma once

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/ptx/block_scaled_mma.cuh"
#include "backend/cuda/kernels/ptx/bulk_copy.cuh"
#include "backend/cuda/kernels/sm120/operands.h"
#include "backend/cuda/kernels/sm120/work_tile.cuh"

namespace moesaic::cuda::sm120a {

// Shared memory of a multiprocessor of SM120 and SM121; what of it a thread block takes besides its dynamic
// one: the system's part and the barriers.
inline constexpr size_t kSmShared = 100 * 1024, kBlockShared = 1024 + 128;

__host__ __device__ inline int slice_start(int quads, int slice) { return quads * slice / kSlices; }

// The job may be read, and weights for it, before the predecessor has ended: that is expand() or a kernel
// behind it, which lets a successor start only once the list's maker has ended.
struct Product {
  const uint8_t* weights;
  int64_t unit_stride;  // bytes
  int units, blocks;
  Tokens tokens;
  __device__ const uint8_t* unit(int expert, int unit) const {
    return weights + (static_cast<int64_t>(expert) * units + unit) * unit_stride;
  }
  __device__ const uint8_t* group(const Job& job, int group) const {
    return tokens.data + (job.start / kGroup + group) * group_bytes(blocks);
  }
};

// A unit's quad in a warp's registers.
template <Element kA>
struct UnitQuad {
  static constexpr int kVectors = block_bytes(kA) / kLaneVectorBytes;  // of a block
  uint4 block[kQuad][kVectors];  // what lies beyond the last is not used, or meets zeros
  uint32_t scales;
  // from: shared memory
  __device__ explicit UnitQuad(const uint8_t* from) {
    const int lane = threadIdx.x % 32;
    scales = reinterpret_cast<const uint32_t*>(from)[lane];
    const auto* vectors = reinterpret_cast<const uint4*>(from + kUnitScaleBytes) + lane;
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

// Sums of a unit and kGroups groups: [tile m][group], as the MMA leaves them.
template <int kGroups>
struct Sums {
  float v[2][kGroups][4] = {};
};

template <Element kA, int kStep, int kColumn, int kGroups>
__device__ inline void multiply_groups(Sums<kGroups>& sums, const FragmentA (&a)[2],
                                       const uint4 (&x)[kGroups], const RowScales& rows,
                                       const ColumnScales<kGroups>& columns) {
  constexpr bool kFirst = kStep % 2 == 0;  // of the two steps of a vector
  const uint32_t b0 = kFirst ? x[kColumn].x : x[kColumn].z, b1 = kFirst ? x[kColumn].y : x[kColumn].w;
  mma<kA, kStep, 0, kColumn>(sums.v[0][kColumn], a[0], b0, b1, rows, columns);
  mma<kA, kStep, 1, kColumn>(sums.v[1][kColumn], a[1], b0, b1, rows, columns);
  if constexpr (kColumn + 1 < kGroups) multiply_groups<kA, kStep, kColumn + 1>(sums, a, x, rows, columns);
}

// The step of block kStep and those behind it; tokens(t, v): the lane's vector v of group t.
template <int kStep, Element kA, int kGroups, class Load>
__device__ inline void multiply_steps(Sums<kGroups>& sums, const UnitQuad<kA>& w, uint4 (&x)[kGroups],
                                      const Load& tokens, const RowScales& rows,
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

// sums += quad of the unit times quad of the tokens, the first `blocks` blocks of it.
template <Element kA, int kGroups, class Load>
__device__ inline void multiply(Sums<kGroups>& sums, const UnitQuad<kA>& w, const Load& tokens,
                                const ColumnScales<kGroups>& columns, int blocks) {
  const RowScales rows(w.scales);
  uint4 x[kGroups];
  multiply_steps<0>(sums, w, x, tokens, rows, columns, blocks);
}

}  // namespace moesaic::cuda::sm120a
