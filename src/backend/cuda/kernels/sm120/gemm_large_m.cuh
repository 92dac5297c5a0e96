// The product for 64 or 128 tokens: eight warps share kUnits units and kTokens tokens, a stage being a quad
// of all of them. A warp computes one unit for its part of the tokens, slice by slice in the order of
// gemm_small_m.cuh.
//
//   grid: (units / kUnits, jobs); shared memory: kStages stages, which the sums reuse
//   bytes: weights once a job, tokens once for each row of thread blocks
#pragma once

#include "backend/cuda/kernels/sm120/epilogue.cuh"

namespace moesaic::cuda::sm120a {

inline constexpr int kManyWarps = 8;

template <Element kA, int kTokens, int kUnits, int kStages>
struct ManyTile {
  static constexpr int kRing = kStages;
  static constexpr int kQuadBytes = unit_quad_bytes(kA), kGroupBytes = kGroupQuadBytes;  // of a quad
  static constexpr int kAllGroups = kTokens / kGroup;
  static constexpr int kGroups = kAllGroups * kUnits / kManyWarps;  // of a warp
  static constexpr int kTokenBegin = kUnits * kQuadBytes;
  static constexpr int kStageBytes = kTokenBegin + kAllGroups * kGroupBytes;
  static constexpr size_t kSums = sizeof(float) * kTokens * kRowStride<kUnits>;
  static constexpr size_t kShared = kStages * kStageBytes > kSums ? kStages* kStageBytes : kSums;
  static constexpr int kBlocks = 2 * (kShared + kBlockShared) <= kSmShared ? 2 : 1;  // of a multiprocessor
  static_assert(kShared + kBlockShared <= kSmShared && kUnits <= 32 && kAllGroups <= 32);
};

// One warp starts a stage: a lane each unit and group. Weights first, which wait for no other kernel.
template <Element kA, class Tile, int kUnits>
struct Stages {
  const Product& p;
  Job job;
  int first_unit, groups, quads;  // groups: that there are
  uint8_t* memory;
  uint64_t* full;

  __device__ uint8_t* stage(int quad) const { return memory + quad % Tile::kRing * Tile::kStageBytes; }
  __device__ uint64_t* barrier(int quad) const { return full + quad % Tile::kRing; }
  __device__ void fetch_weights(int quad) const {
    if (threadIdx.x >= 32 || quad >= quads) return;
    const int lane = threadIdx.x, bytes = quad_bytes(kA, blocks_in_quad(p.blocks, quad));
    if (lane == 0) mbarrier_arrive_expect_tx(barrier(quad), kUnits * bytes + groups * Tile::kGroupBytes);
    __syncwarp();
    if (lane >= kUnits) return;
    const int unit = min(first_unit + lane, p.units - 1);
    cp_async_bulk(stage(quad) + lane * Tile::kQuadBytes,
                  p.unit(job.expert, unit) + static_cast<int64_t>(quad) * Tile::kQuadBytes, bytes,
                  barrier(quad));
  }
  __device__ void fetch_tokens(int quad) const {
    const int group = threadIdx.x;
    if (group >= groups || quad >= quads) return;
    cp_async_bulk(stage(quad) + Tile::kTokenBegin + group * Tile::kGroupBytes,
                  p.group(job, group) + static_cast<int64_t>(quad) * Tile::kGroupBytes, Tile::kGroupBytes,
                  barrier(quad));
  }
};

template <int kGroups>
__device__ inline void add_slice(Sums<kGroups>& sums, Sums<kGroups>& slice) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int t = 0; t < kGroups; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.v[m][t][i] += slice.v[m][t][i], slice.v[m][t][i] = 0;
    }
  }
}

template <Element kA, int kTokens, int kUnits, int kStages, class Epilogue>
__global__ void __launch_bounds__(kManyWarps * 32, (ManyTile<kA, kTokens, kUnits, kStages>::kBlocks))
    many_kernel(const Product p, const Epilogue epilogue) {
  using Tile = ManyTile<kA, kTokens, kUnits, kStages>;
  constexpr int kGroups = Tile::kGroups;
  extern __shared__ __align__(128) uint8_t many_shared[];
  __shared__ uint64_t full[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quads = quads_of(p.blocks);
  const Job job = job_of(p.tokens);
  if (job.count == 0) return wait_for_predecessor();
  const int first_unit = blockIdx.x * kUnits, unit = warp % kUnits, first_group = warp / kUnits * kGroups;
  const int groups = (job.count + kGroup - 1) / kGroup;
  const Stages<kA, Tile, kUnits> stages{p, job, first_unit, groups, quads, many_shared, full};
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

  Sums<kGroups> sums, slice;
  for (int s = 0, quad = 0; s < kSlices; ++s) {
    for (const int end = slice_start(quads, s + 1); quad < end; ++quad) {
      const uint8_t* stage = stages.stage(quad);
      mbarrier_wait(full + quad % kStages, quad / kStages % 2);
      if (first_group < groups) {
        const uint8_t* tokens = stage + Tile::kTokenBegin + first_group * Tile::kGroupBytes;
        uint32_t scales[(kGroups + 3) / 4];
#pragma unroll
        for (int i = 0; i < (kGroups + 3) / 4; ++i) {
          const int group = min(4 * i + lane % 4, kGroups - 1);
          scales[i] =
              reinterpret_cast<const uint32_t*>(tokens + group * Tile::kGroupBytes + kGroupScales)[lane / 4];
        }
        multiply(
            slice, UnitQuad<kA>(stage + unit * Tile::kQuadBytes),
            [&](int t, int i) {
              return reinterpret_cast<const uint4*>(tokens + t * Tile::kGroupBytes +
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

  auto* out = reinterpret_cast<float*>(many_shared);
  store<kUnits>(sums, out, unit, first_group);
  __syncthreads();
  finish<kUnits, 1>(epilogue, Tiles{out, 0, job, first_unit, min(kUnits, p.units - first_unit)});
}

}  // namespace moesaic::cuda::sm120a
