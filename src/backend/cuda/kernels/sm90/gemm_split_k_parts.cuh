// gemm_split_k.cu: shared memory, how the weight tiles of all work tiles are shared out, and the consumer
// warps.
#pragma once

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/work_list.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/kernels/sm90/gemm_split_k.h"
#include "backend/cuda/kernels/sm90/slab.cuh"

namespace moesaic::cuda::sm90a {

inline constexpr int kSplitStages = 5;  // units in the ring
inline constexpr int kSplitThreads = (kConsumers + 1) * 32;
inline constexpr int kSumBuffers = 2;

struct SplitParams {
  const uint8_t* weights;
  SlabLayout layout;
  Activations x;
  void* out;  // half h, or float
  int64_t stride;
  SplitRoute route;
};

// Of few rows every thread block of the first product makes the jobs for itself, and of the second reads them
// once: a kernel of its own takes 7 us, and a job that is read when its turn comes delays all warps.
inline constexpr int kRoutedTiles = 208, kRoutedExperts = 255;
struct RoutedTiles {
  Job jobs[kRoutedTiles];
  int32_t rows[kFewPairs];  // of slots
  int count;
};
// What making them takes.
struct RoutingScratch {
  int32_t ids[kFewPairs], slots[kFewPairs];
  float weights[kFewPairs];
  FewPairs<kRoutedExperts> pairs;
};

struct alignas(128) SplitShared {
  uint8_t unit[kSplitStages][kUnitBytes];
  float2 sums[kSumBuffers][kConsumers][kSplitTokens / 8][16][4];  // row, pair of tokens
  uint64_t full[kSplitStages];                                    // the unit has landed
  uint64_t ready[kSumBuffers];  // the consumers have written their sums, and need their unit no more
  uint64_t taken[kSumBuffers];  // they have been read
  RoutedTiles made;
};
static_assert(sizeof(RoutingScratch) <= sizeof(SplitShared::sums));

// A unit of a job. One of 16 tokens costs 4/3 of one of 8 (measured: 1.2 to 1.4 where the memory is busy),
// and Job::start counts the tiles of all jobs before.
struct WorkPosition {
  int job, unit;
};
inline constexpr int kUnitCost = 16;
template <bool kDown>
inline constexpr int kJobUnits = kDown ? kFc1Units / 2 : kFc1Units;

// The units of this thread block, one job's after the other.
template <bool kDown>
struct UnitRange {
  WorkPosition at, end;  // behind the last job: {jobs, 0}

  // By a warp, lane by lane of 32 jobs: one round of loads where there are no more.
  __device__ explicit UnitRange(const Activations& x) {
    const int lane = threadIdx.x & 31;
    Job job = x.jobs[min(lane, x.tokens - 1)];
    const int jobs = *x.job_count;
    const int all =
        jobs <= 32 ? __shfl_sync(~0u, end_cost(job, lane), jobs - 1) : end_cost(x.jobs[jobs - 1], jobs - 1);
    const int from = all * blockIdx.x, to = from + all;  // times the grid
    at = end = {jobs, 0};
    for (int base = 0; base < jobs; base += 32) {
      if (base > 0) job = x.jobs[min(base + lane, jobs - 1)];
      find(from, base, jobs, job, at), find(to, base, jobs, job, end);
    }
  }
  __device__ static int cost(const Job& job) { return tile_width(job.count) + kUnitCost; }
  // Of the jobs up to this one.
  __device__ static int end_cost(const Job& job, int index) {
    return job.start + index * kUnitCost + cost(job);
  }
  // The unit at which spent / grid is spent, if it is in the lanes' jobs.
  __device__ static void find(int spent, int base, int jobs, const Job& job, WorkPosition& place) {
    const int index = base + (threadIdx.x & 31), grid = gridDim.x, own = cost(job) * grid;
    const int rest = end_cost(job, index) * grid - spent;
    const unsigned here = __ballot_sync(~0u, index < jobs && rest > 0 && rest <= own);
    if (here == 0) return;
    const int lane = __ffs(here) - 1;
    place = {base + lane, __shfl_sync(~0u, (own - rest) * kJobUnits<kDown> / own, lane)};
  }
  __device__ bool done() const { return at.job == end.job && at.unit == end.unit; }
  __device__ int left_of_job() const {
    const int last = at.job == end.job ? end.unit : kJobUnits<kDown>;
    return last - at.unit;
  }
  __device__ void skip(int units) {
    if ((at.unit += units) == kJobUnits<kDown>) ++at.job, at.unit = 0;
  }
};

// ---- consumers ----

// This lane's columns of the warp's six blocks: token lane / 4 of each eight.
template <int kTiles>
__device__ __forceinline__ void load_tokens(const SplitParams& p, const Job& job, int warp,
                                            uint4 (&b)[kTiles][kBlocksPerWarp]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int token = i * 8 + lane / 4, slot = job.first + token;
    const bool valid = token < job.count;
    const int64_t row = valid && p.x.rows != nullptr ? p.x.rows[slot] : slot;
    const uint8_t* from =
        static_cast<const uint8_t*>(p.x.x) + row * (kHidden * 2) + warp * kSlice + lane % 4 * 16;
#pragma unroll
    for (int j = 0; j < kBlocksPerWarp; ++j)
      b[i][j] = valid ? *reinterpret_cast<const uint4*>(from + j * 64) : uint4{};
  }
}

// Registers are few, and the compiler would rather read special ones again, slowly, than keep what comes of
// them: a shuffle's result it has to keep.
__device__ inline uint32_t held(uint32_t x) { return __shfl_sync(~0u, x, threadIdx.x & 31); }

// Where what a lane takes of a slab stands: words of four blocks, of two, scales.
struct SlabOperands {
  uint32_t four, two, scales;

  __device__ SlabOperands(uint32_t unit, int warp, int lane) {
    const uint32_t at = unit + warp / kWarpsPerThird * kUnitThird + warp % kWarpsPerThird * kWarpBytes;
    four = held(at + lane * 16), two = held(at + kWarpTail + lane * 8);
    scales = held(at + kWarpScales + lane / 4 * kBlocksPerWarp);
  }
};

// 16 rows by 6 blocks. Of each token ((p0 + p1) + p2), p_q = d[2q] s[2q] + d[2q+1] s[2q+1]. at: the unit's
// distance from the first one.
template <int kTiles>
__device__ __forceinline__ void multiply(const SlabOperands& from, uint32_t at, int slab,
                                         const uint4 (&b)[kTiles][kBlocksPerWarp], float (&sum)[kTiles][4]) {
  uint32_t words[2][kBlocksPerWarp];
  uint16_t scales[2][3];
#pragma unroll
  for (int h = 0; h < 2; ++h, at += slab) {
    const auto u = ld_shared<uint4>(from.four + at);
    const auto v = ld_shared<uint2>(from.two + at);
    words[h][0] = u.x, words[h][1] = u.y, words[h][2] = u.z, words[h][3] = u.w;
    words[h][4] = v.x, words[h][5] = v.y;
#pragma unroll
    for (int q = 0; q < 3; ++q) scales[h][q] = ld_shared<uint16_t>(from.scales + at + 2 * q);
  }
#pragma unroll
  for (int q = 0; q < 3; ++q) {
    float d[kTiles][2][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t a0[4], a1[4];
      decode(words[0][2 * q + k], a0);
      decode(words[1][2 * q + k], a1);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4 x = b[i][2 * q + k];
        mma<false>(d[i][k], a0[0], a1[0], a0[1], a1[1], x.x, x.y);
        mma<false>(d[i][k], a0[2], a1[2], a0[3], a1[3], x.z, x.w);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t two = scales[e / 2][q];
        const float part = fmaf(d[i][1][e], scale_high(two), d[i][0][e] * scale_low(two));
        sum[i][e] = q == 0 ? part : sum[i][e] + part;
      }
    }
  }
}

struct SplitConsumer {
  uint32_t shared, sums;  // addresses; where this lane's sums go in the first buffer
  SlabOperands operands;  // of the first unit
  int third;
  bool first_lane;
  RingPlace<kSplitStages> stage;
  RingPlace<kSumBuffers> buffer;

  __device__ SplitConsumer(const SplitShared& s, int warp, int lane)
      : shared(held(smem_addr(&s))),
        sums(held(smem_addr(&s.sums[0][warp][0][lane / 4][lane % 4]))),
        operands(smem_addr(s.unit), warp, lane),
        third(warp / kWarpsPerThird),
        first_lane(held(lane) == 0) {}

  // Units [unit, end). singles: FC2's first unit of single slabs. at_last(): before the last one.
  template <bool kDown, int kTiles, class AtLast>
  __device__ __forceinline__ void units(SplitShared& s, const uint4 (&b)[kTiles][kBlocksPerWarp], int unit,
                                        int end, int singles, const AtLast& at_last) {
#pragma unroll 1
    for (; unit < end; ++unit) {
      if (unit == end - 1) at_last();
      mbarrier_wait(shared + static_cast<uint32_t>(offsetof(SplitShared, full)) + stage.index * 8,
                    stage.phase);
      float sum[kTiles][4] = {};
      const Strides by = strides(kDown, unit - singles);
      multiply<kTiles>(operands, stage.index * kUnitBytes - third * (kUnitThird - by.third), by.slab, b, sum);
      const uint32_t barriers = shared + buffer.index * 8;
      mbarrier_wait(barriers + static_cast<uint32_t>(offsetof(SplitShared, taken)), buffer.phase ^ 1);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint32_t to = sums + buffer.index * static_cast<uint32_t>(sizeof(s.sums[0])) +
                            i * static_cast<uint32_t>(sizeof(s.sums[0][0][0]));
        st_shared(to, make_float2(sum[i][0], sum[i][1]));
        st_shared(to + 8 * sizeof(s.sums[0][0][0][0]), make_float2(sum[i][2], sum[i][3]));
      }
      __syncwarp();
      if (arrives(first_lane))
        mbarrier_arrive(barriers + static_cast<uint32_t>(offsetof(SplitShared, ready)));
      stage.next(), buffer.next();
    }
  }
};

// Before its last unit a job of one tile reads the next one's tokens, if it has one tile, too.
template <bool kDown>
__device__ void consume(SplitShared& s, const SplitParams& p, int warp) {
  SplitConsumer consumer(s, warp, threadIdx.x & 31);
  UnitRange<kDown> share(p.x);
  wait_for_predecessor();
  while (!share.done()) {
    Job job = p.x.jobs[share.at.job];
    if (job.count > 8) {
      uint4 b[2][kBlocksPerWarp];
      load_tokens<2>(p, job, warp, b);
      const int unit = share.at.unit, units = share.left_of_job();
      consumer.units<kDown, 2>(s, b, unit, unit + units, p.layout.fc2_units, [] {});
      share.skip(units);
      continue;
    }
    uint4 b[1][kBlocksPerWarp], next[1][kBlocksPerWarp];
    load_tokens<1>(p, job, warp, b);
    for (bool more = true; more;) {
      const int unit = share.at.unit, units = share.left_of_job();
      share.skip(units);
      more = !share.done();
      if (more) job = p.x.jobs[share.at.job], more = job.count <= 8;
      consumer.units<kDown, 1>(s, b, unit, unit + units, p.layout.fc2_units, [&] {
        if (more) load_tokens<1>(p, job, warp, next);
      });
#pragma unroll
      for (int j = 0; j < kBlocksPerWarp; ++j) b[0][j] = next[0][j];
    }
  }
}

}  // namespace moesaic::cuda::sm90a
