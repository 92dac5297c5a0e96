// gemm_split_k.cu: shared memory, how the slab pairs of all work tiles are shared out, and the consumer
// warps.
#pragma once

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/work_list.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/kernels/sm90/gemm_split_k.h"
#include "backend/cuda/kernels/sm90/slab.cuh"

namespace moesaic::cuda::sm90 {

inline constexpr int kSplitKStages = 5;  // slab pairs in the ring
inline constexpr int kSumBuffers = 2;
// Finishing warps, and threads of a CTA. The first product's SwiGLU is more than one warp can do beside three
// consumers: there two warps finish, another one loads, and their warpgroup hands its registers over.
template <bool kDown>
inline constexpr int kFinishers = kDown ? 1 : 2;
template <bool kDown>
inline constexpr int kSplitKThreads = (kConsumers + 1) * 32 + (kDown ? 0 : 128);
inline constexpr int kConsumerRegisters = 104, kFinisherRegisters = 64;

struct SplitKParams {
  const uint8_t* weights;
  SlabLayout layout;
  Activations x;
  void* out;  // half h, or float
  int64_t stride;
  SplitKRoute route;
};

// For few rows each CTA of the first product makes the list of work tiles for itself, and each CTA of the
// second reads all of it at once: a kernel of its own would take 7 us, and reading a work tile when its turn
// comes delays all warps.
inline constexpr int kRoutedTiles = 208, kRoutedExperts = 255;
struct RoutedTiles {
  WorkTile work_tiles[kRoutedTiles];
  int32_t rows[kSmallPlanPairs];  // source rows of the permuted rows
  int count;
};
// Scratch memory for making them.
struct RoutingScratch {
  int32_t ids[kSmallPlanPairs], permuted_rows[kSmallPlanPairs];
  float weights[kSmallPlanPairs];
  SmallPlan<kRoutedExperts> pairs;
};

// A slab pair of a work tile. One of 16 tokens costs 4/3 of one of 8 (measured: 1.2 to 1.4 where the memory
// is busy), and WorkTile::start counts the tiles of all work tiles before.
struct WorkPosition {
  int work_tile, slab_pair;
};
inline constexpr int kSlabPairCost = 16;
// Slab pairs of an expert.
template <bool kDown>
__device__ __forceinline__ int slab_pairs_of(const SlabLayout& layout) {
  return kDown ? layout.fc2_all / 2 : layout.fc1_all;
}

// The slab pairs of this CTA, one work tile's after the other: [first, end). It stands in shared memory:
// consumers have no registers left for it.
struct SlabPairRange {
  const WorkTile* work_tiles;
  const int32_t* rows;      // Activations::rows
  WorkPosition first, end;  // behind the last work tile: {work_tiles, 0}
  int each;                 // slab pairs of a work tile

  // By a warp, a lane for each of 32 work tiles: one round of loads where there are no more. slab_pairs: of
  // an expert.
  __device__ void find(const Activations& x, int slab_pairs) {
    const int lane = threadIdx.x & 31;
    WorkTile work_tile = x.work_tiles[min(lane, x.tokens - 1)];
    const int count = *x.work_tile_count;
    const int all = count <= 32 ? __shfl_sync(~0u, end_cost(work_tile, lane), count - 1)
                                : end_cost(x.work_tiles[count - 1], count - 1);
    const int from = all * blockIdx.x, to = from + all;  // times the grid
    WorkPosition begins = {count, 0}, ends = {count, 0};
    for (int base = 0; base < count; base += 32) {
      if (base > 0) work_tile = x.work_tiles[min(base + lane, count - 1)];
      find(from, base, count, slab_pairs, work_tile, begins),
          find(to, base, count, slab_pairs, work_tile, ends);
    }
    if (lane == 0) *this = {x.work_tiles, x.rows, begins, ends, slab_pairs};
  }
  __device__ static int cost(const WorkTile& work_tile) {
    return tile_width(work_tile.count) + kSlabPairCost;
  }
  // The cost of the work tiles up to this one.
  __device__ static int end_cost(const WorkTile& work_tile, int index) {
    return work_tile.start + index * kSlabPairCost + cost(work_tile);
  }
  // The slab pair at which spent / grid is spent, if it is in the lanes' work tiles.
  __device__ static void find(int spent, int base, int count, int slab_pairs, const WorkTile& work_tile,
                              WorkPosition& place) {
    const int index = base + (threadIdx.x & 31), grid = gridDim.x, own = cost(work_tile) * grid;
    const int rest = end_cost(work_tile, index) * grid - spent;
    const unsigned here = __ballot_sync(~0u, index < count && rest > 0 && rest <= own);
    if (here == 0) return;
    const int lane = __ffs(here) - 1;
    place = {base + lane, __shfl_sync(~0u, (own - rest) * slab_pairs / own, lane)};
  }
  __device__ bool done(const WorkPosition& at) const {
    return at.work_tile == end.work_tile && at.slab_pair == end.slab_pair;
  }
  // The slab pair behind the last one of at's work tile.
  __device__ int end_of_work_tile(const WorkPosition& at) const {
    return at.work_tile == end.work_tile ? end.slab_pair : each;
  }
  // The position of that slab pair of at's work tile; behind the last one, of the next work tile's first.
  __device__ WorkPosition place(const WorkPosition& at, int slab_pair) const {
    if (slab_pair == each) return {at.work_tile + 1, 0};
    return {at.work_tile, slab_pair};
  }
};

struct alignas(128) SplitKShared {
  uint8_t slab_pair[kSplitKStages][kSlabPairBytes];
  float2 sums[kSumBuffers][kConsumers][kSplitKTokens / 8][16][4];  // row, pair of tokens
  uint4 second[kConsumers][kBlocksPerWarp][32];  // each lane's columns of a work tile's second eight tokens
  uint64_t full[kSplitKStages];                  // the slab pair has landed
  uint64_t empty[kSplitKStages];                 // the finishers need it no more (first product)
  uint64_t ready[kSumBuffers];  // the consumers have written their sums, and need their slab pair no more
  uint64_t taken[kSumBuffers];  // they have been read
  SlabPairRange range;
  RoutedTiles made;
};
static_assert(sizeof(RoutingScratch) <= sizeof(SplitKShared::sums));

// ---- consumers ----

// This lane's columns of the warp's six blocks: token first + lane / 4.
__device__ __forceinline__ void load_tokens(const SplitKParams& p, const int32_t* rows,
                                            const WorkTile& work_tile, int first, int warp,
                                            uint4 (&b)[kBlocksPerWarp]) {
  const int lane = threadIdx.x & 31, token = first + lane / 4, permuted_row = work_tile.first + token;
  const bool valid = token < work_tile.count;
  const int64_t row = valid && rows != nullptr ? rows[permuted_row] : permuted_row;
  const uint8_t* from =
      static_cast<const uint8_t*>(p.x.x) + row * (kHidden * 2) + warp * kSlice + lane % 4 * 16;
#pragma unroll
  for (int j = 0; j < kBlocksPerWarp; ++j)
    b[j] = valid ? *reinterpret_cast<const uint4*>(from + j * 64) : uint4{};
}

// Makes the compiler keep a value that depends on threadIdx in a register, by a shuffle. Otherwise it reads
// the special register again, which is slow.
__device__ inline uint32_t held(uint32_t x) { return __shfl_sync(~0u, x, threadIdx.x & 31); }

// Shared memory addresses of what a lane reads of a slab: words of four blocks, words of two, scales.
struct SlabOperands {
  uint32_t four, two, scales;

  __device__ SlabOperands(uint32_t slab_pair, int warp, int lane) {
    const uint32_t at =
        slab_pair + warp / kWarpsPerThird * kSlabPairThird + warp % kWarpsPerThird * kWarpBytes;
    four = held(at + lane * 16), two = held(at + kWarpTail + lane * 8);
    scales = held(at + kWarpScales + lane / 4 * kBlocksPerWarp);
  }
};

// 16 rows by 6 blocks. Of each token ((p0 + p1) + p2), p_q = d[2q] s[2q] + d[2q+1] s[2q+1]. at: the slab
// pair's distance from the first one. second: address of this lane's columns of the second eight tokens.
template <int kTiles>
__device__ __forceinline__ void multiply(const SlabOperands& from, uint32_t at, int slab,
                                         const uint4 (&b)[kBlocksPerWarp], uint32_t second,
                                         float (&sum)[kTiles][4]) {
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
    uint4 more[2];
#pragma unroll
    for (int k = 0; kTiles > 1 && k < 2; ++k)
      more[k] = ld_shared<uint4>(second + (2 * q + k) * static_cast<uint32_t>(32 * sizeof(uint4)));
    float d[kTiles][2][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t a0[4], a1[4];
      decode(words[0][2 * q + k], a0);
      decode(words[1][2 * q + k], a1);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4 x = i == 0 ? b[2 * q + k] : more[k];
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

struct SplitKConsumer {
  uint32_t shared, sums, second;  // addresses; sums: this lane's in the first buffer
  SlabOperands operands;          // the first slab pair's
  int third;
  bool first_lane;
  RingPlace<kSplitKStages> stage;
  RingPlace<kSumBuffers> buffer;

  __device__ SplitKConsumer(const SplitKShared& s, int warp, int lane)
      : shared(held(smem_addr(&s))),
        sums(held(smem_addr(&s.sums[0][warp][0][lane / 4][lane % 4]))),
        second(held(smem_addr(&s.second[warp][0][lane]))),
        operands(smem_addr(s.slab_pair), warp, lane),
        third(warp / kWarpsPerThird),
        first_lane(held(lane) == 0) {}

  // Slab pairs [slab_pair, end). singles: FC2's first slab pair of single slabs. at_last(): before the last
  // one.
  template <bool kDown, int kTiles, class AtLast>
  __device__ __forceinline__ void slab_pairs(SplitKShared& s, const uint4 (&b)[kBlocksPerWarp], int slab_pair,
                                             int end, int singles, const AtLast& at_last) {
#pragma unroll 1
    for (int left = end - slab_pair; left > 0; --left) {
      if (left == 1) at_last();
      mbarrier_wait(shared + static_cast<uint32_t>(offsetof(SplitKShared, full)) + stage.index * 8,
                    stage.phase);
      float sum[kTiles][4] = {};
      const Strides by = strides(kDown, end - singles - left);
      multiply<kTiles>(operands, stage.index * kSlabPairBytes - third * (kSlabPairThird - by.third), by.slab,
                       b, second, sum);
      const uint32_t barriers = shared + buffer.index * 8;
      mbarrier_wait(barriers + static_cast<uint32_t>(offsetof(SplitKShared, taken)), buffer.phase ^ 1);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint32_t to = sums + buffer.index * static_cast<uint32_t>(sizeof(s.sums[0])) +
                            i * static_cast<uint32_t>(sizeof(s.sums[0][0][0]));
        st_shared(to, make_float2(sum[i][0], sum[i][1]));
        st_shared(to + 8 * sizeof(s.sums[0][0][0][0]), make_float2(sum[i][2], sum[i][3]));
      }
      __syncwarp();
      if (arrives(first_lane))
        mbarrier_arrive(barriers + static_cast<uint32_t>(offsetof(SplitKShared, ready)));
      stage.next(), buffer.next();
    }
  }
};

// Before the last slab pair of a work tile of up to 8 tokens the next work tile's tokens are read, if it has
// up to 8 as well.
template <bool kDown>
__device__ void consume(SplitKShared& s, const SplitKParams& p, int warp) {
  SplitKConsumer consumer(s, warp, threadIdx.x & 31);
  const SlabPairRange& range = s.range;
  const int singles = p.layout.fc2_slab_pairs;
  wait_for_predecessor();
  WorkPosition at = range.first;
  while (!range.done(at)) {
    WorkTile work_tile = range.work_tiles[at.work_tile];
    if (work_tile.count > 8) {
      uint4 b[kBlocksPerWarp], second[kBlocksPerWarp];
      load_tokens(p, range.rows, work_tile, 0, warp, b);
      load_tokens(p, range.rows, work_tile, 8, warp, second);
#pragma unroll
      for (int j = 0; j < kBlocksPerWarp; ++j) s.second[warp][j][threadIdx.x & 31] = second[j];
      const int end = range.end_of_work_tile(at);
      consumer.slab_pairs<kDown, 2>(s, b, at.slab_pair, end, singles, [] {});
      at = range.place(at, end);
      continue;
    }
    uint4 b[kBlocksPerWarp], next[kBlocksPerWarp];
    load_tokens(p, range.rows, work_tile, 0, warp, b);
    for (bool more = true; more;) {
      const int first = at.slab_pair, end = range.end_of_work_tile(at);
      at = range.place(at, end);
      more = !range.done(at);
      if (more) work_tile = range.work_tiles[at.work_tile], more = work_tile.count <= 8;
      consumer.slab_pairs<kDown, 1>(s, b, first, end, singles, [&] {
        if (more) load_tokens(p, range.rows, work_tile, 0, warp, next);
      });
#pragma unroll
      for (int j = 0; j < kBlocksPerWarp; ++j) b[j] = next[j];
    }
  }
}

}  // namespace moesaic::cuda::sm90
