// The product for 8, 16 or 32 tokens, bound by the weights' bytes: a thread block computes kUnits units for
// one job; each of its four warps streams one slice of the contraction through a ring of bulk copies of its
// own, so that nothing but the end makes warps wait for each other.
//
//   grid: (units / kUnits, jobs); shared memory: 4 rings of 3 quads of E2M1, 26 KB, or 2 of E4M3, 34 KB,
//   which the sums reuse bytes: weights once a job, tokens once for each row of thread blocks (from L2)
#pragma once

#include "backend/cuda/kernels/sm120/epilogue.cuh"

namespace moesaic::cuda::sm120a {

inline constexpr int kFewWarps = kSlices;
template <Element kA>
inline constexpr int kFewStages = kA == Element::kE2M1 ? 3 : 2;
template <Element kA, int kGroups, int kUnits>
inline constexpr size_t kFewShared = [] {
  constexpr size_t kRings = kFewWarps * kFewStages<kA> * unit_quad_bytes(kA);
  constexpr size_t kSums = sizeof(float) * kSlices * kGroups * kGroup * kRowStride<kUnits>;
  return kRings > kSums ? kRings : kSums;
}();

// Of a multiprocessor; many tokens take the registers of a third, wide weights its shared memory.
template <Element kA, int kGroups, int kUnits>
inline constexpr int kFewBlocks = kA == Element::kE2M1&& kGroups* kUnits <= 4 ? 3 : 2;

// A warp's stream of quads: of each in turn the kUnits units.
template <Element kA, int kUnits>
struct WeightRing {
  static constexpr int kStages = kFewStages<kA>, kStageBytes = unit_quad_bytes(kA);
  const uint8_t* source;  // the first unit
  int64_t unit_stride;
  uint8_t* stages;
  uint64_t* full;
  int blocks, first, steps;  // steps: (quad - first) * kUnits + unit

  __device__ void fetch(int step) const {
    if (step >= steps || threadIdx.x % 32 != 0) return;
    const int quad = first + step / kUnits, stage = step % kStages;
    const int bytes = quad_bytes(kA, blocks_in_quad(blocks, quad));
    mbarrier_arrive_expect_tx(full + stage, bytes);
    cp_async_bulk(stages + stage * kStageBytes,
                  source + step % kUnits * unit_stride + static_cast<int64_t>(quad) * kStageBytes, bytes,
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
  // The step's quad; its room is filled anew at once.
  __device__ UnitQuad<kA> take(int step) const {
    const int stage = step % kStages;
    mbarrier_wait(full + stage, step / kStages % 2);
    const UnitQuad<kA> quad(stages + stage * kStageBytes);
    __syncwarp();
    fetch(step + kStages);
    return quad;
  }
};

// A quad of all groups of a job, straight from L2 to registers.
template <int kGroups>
struct TokenQuad {
  static constexpr int kVectors = kGroupVectors;
  uint4 v[kGroups][kVectors];
  uint32_t scales[1];
  // from: the job's first group; groups: that there are
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

template <Element kA, int kGroups, int kUnits, class Epilogue>
__global__ void __launch_bounds__(kFewWarps * 32, (kFewBlocks<kA, kGroups, kUnits>))
    few_kernel(const Product p, const Epilogue epilogue) {
  static_assert(kFewBlocks<kA, kGroups, kUnits> * (kFewShared<kA, kGroups, kUnits> + kBlockShared) <=
                kSmShared);
  using Ring = WeightRing<kA, kUnits>;
  extern __shared__ __align__(128) uint8_t few_shared[];
  __shared__ uint64_t full[kFewWarps][Ring::kStages];
  const int warp = threadIdx.x / 32, quads = quads_of(p.blocks);
  const Job job = job_of(p.tokens);
  if (job.count == 0) return wait_for_predecessor();
  const int first_unit = blockIdx.x * kUnits, units = min(kUnits, p.units - first_unit);
  const int first = slice_start(quads, warp), end = slice_start(quads, warp + 1);
  // Of a unit that does not exist the last is read again and its sums are dropped.
  const Ring ring{.source = p.unit(job.expert, first_unit),
                  .unit_stride = units == kUnits ? p.unit_stride : 0,
                  .stages = few_shared + warp * Ring::kStages * Ring::kStageBytes,
                  .full = full[warp],
                  .blocks = p.blocks,
                  .first = first,
                  .steps = (end - first) * kUnits};
  ring.start();
  wait_for_predecessor();
  launch_dependents();
  const uint8_t* tokens = p.group(job, 0);
  const int64_t group_stride = group_bytes(p.blocks);
  const int groups = (job.count + kGroup - 1) / kGroup;
  Sums<kGroups> sums[kUnits];
  TokenQuad<kGroups> next;
  if (first < end) next.load(tokens, group_stride, groups, first);
  for (int quad = first; quad < end; ++quad) {
    const TokenQuad<kGroups> x = next;
    if (quad + 1 < end) next.load(tokens, group_stride, groups, quad + 1);
    const ColumnScales<kGroups> columns(x.scales);
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      multiply(
          sums[u], ring.take((quad - first) * kUnits + u), [&](int t, int i) { return x.v[t][i]; }, columns,
          blocks_in_quad(p.blocks, quad));
  }

  __syncthreads();
  auto* partial = reinterpret_cast<float*>(few_shared);
  constexpr int kSlice = kGroups * kGroup * kRowStride<kUnits>;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) store<kUnits>(sums[u], partial + warp * kSlice, u, 0);
  __syncthreads();
  finish<kUnits, kSlices>(epilogue, Tiles{partial, kSlice, job, first_unit, units});
}

}  // namespace moesaic::cuda::sm120a
