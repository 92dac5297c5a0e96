// A unit of 16 rows (slab_layout.h) at a time, of which each of 15 warps takes 6 of the 90 blocks of
// the contraction; its part of the job's activations stays in registers. One more warp adds the 15 parts up,
// finishes the rows and has the next unit brought into the place that has become free. Thread blocks share
// the units of all jobs evenly and in order, so that the last ones end together, and a block changes the job,
// and reloads activations, hardly ever.
//
//   bytes: weights once per job, in bulk copies of 24 KB, up to 123 KB of them on their way; activations once
//   per block and job
//   issue slots of a unit and warp: 230 for 8 tokens, 270 for 16, where four warps a scheduler have 1,260
//   cycles for a unit at 4.4 TB/s, and the finishing warp as many for all that it does
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/work_list.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/kernels/sm90/gemm_split_k.h"
#include "backend/cuda/kernels/sm90/slab.cuh"

namespace moesaic::cuda::sm90a {
namespace {

constexpr int kSplitStages = 5;  // units in the ring
constexpr int kSplitThreads = (kConsumers + 1) * 32;
constexpr int kSumBuffers = 2;

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
constexpr int kMadeJobs = 208, kMadeExperts = 255;
struct Made {
  Job jobs[kMadeJobs];
  int32_t rows[kFewPairs];  // of slots
  int count;
};
// What making them takes.
struct Making {
  int32_t ids[kFewPairs], slots[kFewPairs];
  float weights[kFewPairs];
  FewPairs<kMadeExperts> pairs;
};

struct alignas(128) SplitShared {
  uint8_t unit[kSplitStages][kUnitBytes];
  float2 sums[kSumBuffers][kConsumers][kSplitTokens / 8][16][4];  // row, pair of tokens
  uint64_t full[kSplitStages];                                    // the unit has landed
  uint64_t ready[kSumBuffers];  // the consumers have written their sums, and need their unit no more
  uint64_t taken[kSumBuffers];  // they have been read
  Made made;
};
static_assert(sizeof(Making) <= sizeof(SplitShared::sums));

// A unit of a job. One of 16 tokens costs 4/3 of one of 8 (measured: 1.2 to 1.4 where the memory is busy),
// and Job::start counts the tiles of all jobs before.
struct Place {
  int job, unit;
};
constexpr int kUnitCost = 16;
template <bool kDown>
constexpr int kJobUnits = kDown ? kFc1Units / 2 : kFc1Units;

// The units of this thread block, one job's after the other.
template <bool kDown>
struct Share {
  Place at, end;  // behind the last job: {jobs, 0}

  // By a warp, lane by lane of 32 jobs: one round of loads where there are no more.
  __device__ explicit Share(const Activations& x) {
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
  __device__ static void find(int spent, int base, int jobs, const Job& job, Place& place) {
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

// ---- the finishing warp ----

template <bool kDown>
struct Loader {
  const SplitParams& p;
  Share<kDown> share;
  const uint8_t *expert = nullptr, *next;  // null: no more units
  const uint64_t policy = evict_first_policy();

  __device__ Loader(const SplitParams& params, const Share<kDown>& all) : p(params), share(all) {
    find_expert(), find_next();
  }
  __device__ void find_expert() {
    if (!share.done()) expert = p.weights + p.x.jobs[share.at.job].expert * (kDown ? kFc2Bytes : kFc1Bytes);
  }
  __device__ void find_next() {
    next = share.done() ? nullptr : expert + static_cast<size_t>(share.at.unit) * kUnitBytes;
  }

  // By one thread, to which a copy costs some 70 cycles, however long: that warp is the busiest. Where the
  // next one begins has been found before.
  __device__ void load(SplitShared& s, int stage) const {
    if (next == nullptr) return;
    mbar_expect(&s.full[stage], kUnitBytes);
    bulk_copy(s.unit[stage], next, kUnitBytes, &s.full[stage], policy);
  }
  // By all.
  __device__ void advance() {
    if (next == nullptr) return;
    share.skip(1);
    if (share.at.unit == 0) find_expert();
    find_next();
  }
};

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
// The sums of kCount consumers from `first` on of four tokens' values: vector `at` of a tile.
template <int kCount>
__device__ __forceinline__ float4 add_consumers(const SplitShared& s, int buffer, int tile, int at,
                                                int first) {
  float4 v[kCount];
#pragma unroll
  for (int w = 0; w < kCount; ++w)
    v[w] = first + w < kConsumers ? reinterpret_cast<const float4*>(s.sums[buffer][first + w][tile])[at]
                                  : float4{};
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int w = 0; w < kCount; w += 2 * step) v[w] = add(v[w], v[w + step]);
  }
  return v[0];
}
// Row lane / 2, tokens from lane % 2 * 4 on.
__device__ __forceinline__ float4 add_eight(const SplitShared& s, int buffer, int tile) {
  return add_consumers<16>(s, buffer, tile, threadIdx.x & 31, 0);
}
// Row lane / 2, the first four tokens, the same for two lanes, of which each adds half of the consumers.
__device__ __forceinline__ float4 add_four(const SplitShared& s, int buffer) {
  const int lane = threadIdx.x & 31;
  float4 v = add_consumers<8>(s, buffer, 0, lane & ~1, lane % 2 * 8);
  const auto other = [](float x) { return __shfl_xor_sync(~0u, x, 1); };
  return add(v, {other(v.x), other(v.y), other(v.z), other(v.w)});
}

// to: this lane's first token's value of the unit's first row or column; left: tokens from it on.
// Gate and up are neighbouring rows: even ones take the first two of four tokens, odd ones the others.
__device__ __forceinline__ void store_rows(__half* to, int left, int64_t stride, float4 v) {
  const int odd = threadIdx.x / 2 & 1;
  const float x = __shfl_xor_sync(~0u, odd ? v.x : v.z, 2), y = __shfl_xor_sync(~0u, odd ? v.y : v.w, 2);
  const float first = odd ? swiglu(x, v.z) : swiglu(v.x, x), second = odd ? swiglu(y, v.w) : swiglu(v.y, y);
  to += 2 * odd * stride, left -= 2 * odd;
  if (left > 0) to[0] = __float2half_rn(first * kHScale);
  if (left > 1) to[stride] = __float2half_rn(second * kHScale);
}
__device__ __forceinline__ void store_rows(float* to, int left, int64_t stride, float4 v) {
  if (left > 0) to[0] = v.x;
  if (left > 1) to[stride] = v.y;
  if (left > 2) to[2 * stride] = v.z;
  if (left > 3) to[3 * stride] = v.w;
}

// The same of up to four tokens, of which both lanes of a row have all and finish half. to: the first one's
// value.
__device__ __forceinline__ void store_few(__half* to, int count, int64_t stride, float4 v) {
  const int lane = threadIdx.x & 31, odd = lane / 2 & 1, token = 2 * odd + lane % 2;
  const float low = lane % 2 ? v.y : v.x, high = lane % 2 ? v.w : v.z, mine = odd ? high : low;
  const float x = __shfl_xor_sync(~0u, odd ? low : high, 2);
  if (token < count)
    to[token * stride] = __float2half_rn((odd ? swiglu(x, mine) : swiglu(mine, x)) * kHScale);
}
__device__ __forceinline__ void store_few(float* to, int count, int64_t stride, float4 v) {
  const int upper = threadIdx.x & 1, token = 2 * upper;
  if (token < count) to[token * stride] = upper ? v.z : v.x;
  if (token + 1 < count) to[(token + 1) * stride] = upper ? v.w : v.y;
}

template <bool kDown>
__device__ void finish(SplitShared& s, const SplitParams& p) {
  using Out = std::conditional_t<kDown, float, __half>;
  const int lane = threadIdx.x & 31, row = lane / 2, token = lane % 2 * 4;
  const float factor = kWeightScale * p.x.factor;
  Share<kDown> share(p.x);
  Loader<kDown> loader(p, share);
  for (int i = 0; i < kSplitStages; ++i) {
    if (lane == 0) loader.load(s, i);
    loader.advance();
  }
  wait_for_predecessor();
  RingPlace<kSplitStages> stage;
  RingPlace<kSumBuffers> buffer;
  while (!share.done()) {
    const Job job = p.x.jobs[share.at.job];
    const int end = share.at.unit + share.left_of_job();
    const bool few = job.count <= 4;
    Out* out = static_cast<Out*>(p.out) + (job.first + (few ? 0 : token)) * p.stride;
    for (int unit = share.at.unit; unit < end; ++unit) {
      mbar_wait(&s.ready[buffer.index], buffer.phase);
      const uint8_t* slab =
          s.unit[stage.index] + row / 8 * strides(kDown, unit - p.layout.fc2_units).slab + kThirdBias;
      const float bias = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(slab)[row % 8]);
      Out* to = out + (kDown ? unit * 16 + row : unit * 8 + row / 2);
      constexpr int kTiles = kSplitTokens / 8;
      float4 v[kTiles];
      if (few) {
        v[0] = add_four(s, buffer.index);
      } else {
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          if (i * 8 < job.count) v[i] = add_eight(s, buffer.index, i);
      }
      __syncwarp();
      if (arrives(lane == 0)) {
        mbar_arrive(&s.taken[buffer.index]);
        if (lane == 0) loader.load(s, stage.index);
      }
      __syncwarp();
      const auto value = [&](const float4& sum) -> float4 {
        return {fmaf(sum.x, factor, bias), fmaf(sum.y, factor, bias), fmaf(sum.z, factor, bias),
                fmaf(sum.w, factor, bias)};
      };
      if (few) {
        store_few(to, job.count, p.stride, value(v[0]));
      } else {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          if (i * 8 >= job.count) break;
          store_rows(to + i * 8 * p.stride, job.count - i * 8 - token, p.stride, value(v[i]));
        }
      }
      loader.advance(), stage.next(), buffer.next();
    }
    share.skip(end - share.at.unit);
  }
}

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
struct Operands {
  uint32_t four, two, scales;

  __device__ Operands(uint32_t unit, int warp, int lane) {
    const uint32_t at = unit + warp / kWarpsPerThird * kUnitThird + warp % kWarpsPerThird * kWarpBytes;
    four = held(at + lane * 16), two = held(at + kWarpTail + lane * 8);
    scales = held(at + kWarpScales + lane / 4 * kBlocksPerWarp);
  }
};

// 16 rows by 6 blocks. Of each token ((p0 + p1) + p2), p_q = d[2q] s[2q] + d[2q+1] s[2q+1]. at: the unit's
// distance from the first one.
template <int kTiles>
__device__ __forceinline__ void multiply(const Operands& from, uint32_t at, int slab,
                                         const uint4 (&b)[kTiles][kBlocksPerWarp], float (&sum)[kTiles][4]) {
  uint32_t words[2][kBlocksPerWarp];
  uint16_t scales[2][3];
#pragma unroll
  for (int h = 0; h < 2; ++h, at += slab) {
    const auto u = load_shared<uint4>(from.four + at);
    const auto v = load_shared<uint2>(from.two + at);
    words[h][0] = u.x, words[h][1] = u.y, words[h][2] = u.z, words[h][3] = u.w;
    words[h][4] = v.x, words[h][5] = v.y;
#pragma unroll
    for (int q = 0; q < 3; ++q) scales[h][q] = load_shared<uint16_t>(from.scales + at + 2 * q);
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

struct Consumer {
  uint32_t shared, sums;  // addresses; where this lane's sums go in the first buffer
  Operands operands;      // of the first unit
  int third;
  bool first_lane;
  RingPlace<kSplitStages> stage;
  RingPlace<kSumBuffers> buffer;

  __device__ Consumer(const SplitShared& s, int warp, int lane)
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
      mbar_wait(shared + static_cast<uint32_t>(offsetof(SplitShared, full)) + stage.index * 8, stage.phase);
      float sum[kTiles][4];
      const Strides by = strides(kDown, unit - singles);
      multiply<kTiles>(operands, stage.index * kUnitBytes - third * (kUnitThird - by.third), by.slab, b, sum);
      const uint32_t barriers = shared + buffer.index * 8;
      mbar_wait(barriers + static_cast<uint32_t>(offsetof(SplitShared, taken)), buffer.phase ^ 1);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint32_t to = sums + buffer.index * static_cast<uint32_t>(sizeof(s.sums[0])) +
                            i * static_cast<uint32_t>(sizeof(s.sums[0][0][0]));
        store_shared(to, make_float2(sum[i][0], sum[i][1]));
        store_shared(to + 8 * sizeof(s.sums[0][0][0][0]), make_float2(sum[i][2], sum[i][3]));
      }
      __syncwarp();
      if (arrives(first_lane)) mbar_arrive(barriers + static_cast<uint32_t>(offsetof(SplitShared, ready)));
      stage.next(), buffer.next();
    }
  }
};

// Before its last unit a job of one tile reads the next one's tokens, if it has one tile, too.
template <bool kDown>
__device__ void consume(SplitShared& s, const SplitParams& p, int warp) {
  Consumer consumer(s, warp, threadIdx.x & 31);
  Share<kDown> share(p.x);
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

__device__ Making& making_of(SplitShared& s) { return reinterpret_cast<Making&>(s.sums); }
// By all threads of the first product, where making_of().pairs is clear; block 0 leaves them for the second
// product and the combination.
__device__ void make_jobs(SplitShared& s, const SplitRoute& route) {
  Making& making = making_of(s);
  Route here = route.route;
  here.tile = kSplitTokens, here.even = false;
  here.jobs = s.made.jobs, here.slot_rows = s.made.rows, here.job_count = &s.made.count;
  if (blockIdx.x > 0) here.weights = making.weights, here.slots = making.slots;
  top_k_rows<kMadeExperts + 1>(here, making.ids);
  making.pairs.plan(here, making.ids);
  __syncthreads();
  if (blockIdx.x > 0) return;
  for (int i = threadIdx.x; i < s.made.count; i += kSplitThreads) route.route.jobs[i] = s.made.jobs[i];
  if (threadIdx.x == 0) *route.route.job_count = s.made.count;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) publish(route.made, 1);
}
// By all threads of the second.
__device__ void read_jobs(SplitShared& s, const SplitRoute& route) {
  while (threadIdx.x == 0 && published(route.made) == 0) {
  }
  __syncthreads();
  const int most = min(kMadeJobs, route.route.rows * route.route.top_k);
  for (int i = threadIdx.x; i < most; i += kSplitThreads) s.made.jobs[i] = route.route.jobs[i];
  if (threadIdx.x == kSplitThreads - 1) s.made.count = *route.route.job_count;
  __syncthreads();
}
// By one thread of each of its blocks, of which the last sets `made` back.
__device__ void forget_jobs(const SplitRoute& route) {
  if (atomicAdd(route.made, 1) == static_cast<int>(gridDim.x)) *route.made = 0;
}

// kDown: the jobs are made before the predecessor ends, so that weights may come before it does.
template <bool kDown>
__global__ void __launch_bounds__(kSplitThreads) split_kernel(const SplitParams params) {
  extern __shared__ __align__(128) uint8_t split_shared[];
  SplitShared& s = *reinterpret_cast<SplitShared*>(split_shared);
  SplitParams p = params;
  const bool routes = p.route.made != nullptr;
  if (threadIdx.x == 0) {
    for (uint64_t& full : s.full) mbar_init(&full, 1);
    for (int i = 0; i < kSumBuffers; ++i)
      mbar_init(&s.ready[i], kConsumers * kWarpArrivals), mbar_init(&s.taken[i], kWarpArrivals);
    mbar_init_fence();
  }
  if (!kDown && routes) making_of(s).pairs.clear(p.route.route.experts);
  __syncthreads();
  if (!kDown) wait_for_predecessor();
  start_successor();
  if (routes) {
    if (kDown) {
      read_jobs(s, p.route);
    } else {
      make_jobs(s, p.route), p.x.rows = s.made.rows;
    }
    p.x.jobs = s.made.jobs, p.x.job_count = &s.made.count;
  }
  const int warp = threadIdx.x / 32;
  if (warp < kConsumers) return consume<kDown>(s, p, warp);
  finish<kDown>(s, p);
  if (kDown && routes && threadIdx.x % 32 == 0) forget_jobs(p.route);
}

template <bool kDown>
Status split(const SplitParams& p, cudaStream_t stream) {
  static OncePerDevice prepared;
  const Status status =
      prepared.run([] { return set_attributes(split_kernel<kDown>, {.max_shared = sizeof(SplitShared)}); });
  if (!status.ok()) return status;
  return launch(split_kernel<kDown>, dim3(p.layout.sms), dim3(kSplitThreads), sizeof(SplitShared), stream, p);
}

}  // namespace

bool split_routes(const Route& r) {
  return r.rows * r.top_k <= kFewPairs && r.experts <= kMadeExperts && r.tile == kSplitTokens &&
         max_jobs(r.rows, r.experts, r.top_k, r.tile) <= kMadeJobs;
}
Status split_up(const uint8_t* fc1, const SlabLayout& layout, const Activations& x, const SplitRoute& route,
                __half* h, cudaStream_t stream) {
  return split<false>({.weights = fc1, .layout = layout, .x = x, .out = h, .stride = kHidden, .route = route},
                      stream);
}
Status split_down(const uint8_t* fc2, const SlabLayout& layout, const Activations& h, const SplitRoute& route,
                  const Store& out, cudaStream_t stream) {
  return split<true>(
      {.weights = fc2, .layout = layout, .x = h, .out = out.out, .stride = out.stride, .route = route},
      stream);
}

}  // namespace moesaic::cuda::sm90a
