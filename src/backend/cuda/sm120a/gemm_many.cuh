// The product for 64 or 128 tokens: eight warps share kUnits units and kTokens tokens, a stage being a quad
// of all of them. A warp computes one unit for its part of the tokens, slice by slice in the order of
// gemm_few.cuh.
//
//   grid: (units / kUnits, jobs); shared memory: kStages stages, which the sums reuse
//   bytes: weights once a job, tokens once for each row of thread blocks
#pragma once

#include "backend/cuda/sm120a/product.cuh"
#include "backend/cuda/sm90a/ptx.cuh"

namespace moesaic::cuda::sm120a {

inline constexpr int kManyWarps = 8;

template <int kTokens, int kUnits, int kStages>
struct ManyTile {
  static constexpr int kAllGroups = kTokens / kGroup;
  static constexpr int kGroups = kAllGroups * kUnits / kManyWarps;  // of a warp
  static constexpr int kTokenBegin = kUnits * kUnitQuadBytes;
  static constexpr int kStageBytes = kTokenBegin + kAllGroups * kGroupQuadBytes;
  static constexpr size_t kSums = sizeof(float) * kTokens * kRowStride<kUnits>;
  static constexpr size_t kShared = kStages * kStageBytes > kSums ? kStages* kStageBytes : kSums;
  // Of a multiprocessor of SM120: 100 KB, of which a block takes one more.
  static constexpr int kBlocks = kShared <= 49 * 1024 ? 2 : 1;
  static_assert(kShared <= 99 * 1024 && kUnits + kAllGroups <= 32);
};

// One warp starts a stage: a lane each unit and group.
template <class Tile, int kUnits>
__device__ inline void fetch(const Product& p, const Job& job, int first_unit, int groups, int quad,
                             uint8_t* stage, uint64_t* full) {
  const int lane = threadIdx.x % 32, bytes = quad_bytes(blocks_in_quad(p.blocks, quad));
  if (lane == 0) sm90a::mbar_expect(full, kUnits * bytes + groups * kGroupQuadBytes);
  __syncwarp();
  if (lane < kUnits) {
    const int unit = min(first_unit + lane, p.units - 1);
    sm90a::bulk_copy(stage + lane * kUnitQuadBytes,
                     p.unit(job.expert, unit) + static_cast<int64_t>(quad) * kUnitQuadBytes, bytes, full);
  } else if (lane < kUnits + groups) {
    const int group = lane - kUnits;
    sm90a::bulk_copy(stage + Tile::kTokenBegin + group * kGroupQuadBytes,
                     p.group(job, group) + static_cast<int64_t>(quad) * kGroupQuadBytes, kGroupQuadBytes,
                     full);
  }
}

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

template <int kTokens, int kUnits, int kStages, class Epilogue>
__global__ void __launch_bounds__(kManyWarps * 32, (ManyTile<kTokens, kUnits, kStages>::kBlocks))
    many_kernel(const Product p, const Epilogue epilogue) {
  using Tile = ManyTile<kTokens, kUnits, kStages>;
  constexpr int kGroups = Tile::kGroups;
  extern __shared__ __align__(128) uint8_t many_shared[];
  __shared__ uint64_t full[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quads = quads_of(p.blocks);
  wait_for_predecessor();
  start_successor();
  if (static_cast<int>(blockIdx.y) >= *p.job_count) return;
  const Job job = p.jobs[blockIdx.y];
  const int first_unit = blockIdx.x * kUnits, unit = warp % kUnits, first_group = warp / kUnits * kGroups;
  const int present = (job.count + kGroup - 1) / kGroup, groups = p.whole ? Tile::kAllGroups : present;
  const auto fetch_quad = [&](int quad) {
    if (warp == 0 && quad < quads)
      fetch<Tile, kUnits>(p, job, first_unit, present, quad, many_shared + quad % kStages * Tile::kStageBytes,
                          full + quad % kStages);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) sm90a::mbar_init(full + i, 1);
    sm90a::mbar_init_fence();
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch_quad(i);

  Sums<kGroups> sums, slice;
  for (int s = 0, quad = 0; s < kSlices; ++s) {
    for (const int end = slice_start(quads, s + 1); quad < end; ++quad) {
      const uint8_t* stage = many_shared + quad % kStages * Tile::kStageBytes;
      sm90a::mbar_wait(full + quad % kStages, quad / kStages % 2);
      if (first_group < groups) {
        const uint8_t* tokens = stage + Tile::kTokenBegin + first_group * kGroupQuadBytes;
        uint32_t scales[(kGroups + 3) / 4];
#pragma unroll
        for (int i = 0; i < (kGroups + 3) / 4; ++i) {
          const int group = min(4 * i + lane % 4, kGroups - 1);
          scales[i] =
              reinterpret_cast<const uint32_t*>(tokens + group * kGroupQuadBytes + kGroupScales)[lane / 4];
        }
        multiply(
            slice, UnitQuad(stage + unit * kUnitQuadBytes),
            [&](int t, int pair) {
              return reinterpret_cast<const uint4*>(tokens + t * kGroupQuadBytes +
                                                    pair * kGroupPairBytes)[lane];
            },
            ColumnScales<kGroups>(scales), blocks_in_quad(p.blocks, quad));
      }
      __syncthreads();
      fetch_quad(quad + kStages);
    }
    add_slice(sums, slice);
  }

  auto* out = reinterpret_cast<float*>(many_shared);
  store<kUnits>(sums, out, unit, first_group);
  __syncthreads();
  finish<kUnits, 1>(epilogue, Tiles{out, 0, job, first_unit, min(kUnits, p.units - first_unit)});
}

}  // namespace moesaic::cuda::sm120a
