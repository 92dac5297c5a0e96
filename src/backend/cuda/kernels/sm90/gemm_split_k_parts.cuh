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
inline constexpr int kSplitKThreads = (kConsumers + 1) * 32;
inline constexpr int kSumBuffers = 2;

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

struct alignas(128) SplitKShared {
  uint8_t slab_pair[kSplitKStages][kSlabPairBytes];
  float2 sums[kSumBuffers][kConsumers][kSplitKTokens / 8][16][4];  // row, pair of tokens
  uint64_t full[kSplitKStages];                                    // the slab pair has landed
  uint64_t ready[kSumBuffers];  // the consumers have written their sums, and need their slab pair no more
  uint64_t taken[kSumBuffers];  // they have been read
  RoutedTiles made;
};
static_assert(sizeof(RoutingScratch) <= sizeof(SplitKShared::sums));

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

// The slab pairs of this CTA, one work tile's after the other.
template <bool kDown>
struct SlabPairRange {
  WorkPosition at, end;  // behind the last work tile: {work_tiles, 0}
  int each;              // slab pairs of a work tile

  // By a warp, a lane for each of 32 work tiles: one round of loads where there are no more.
  __device__ SlabPairRange(const Activations& x, const SlabLayout& layout)
      : each(slab_pairs_of<kDown>(layout)) {
    const int lane = threadIdx.x & 31;
    WorkTile work_tile = x.work_tiles[min(lane, x.tokens - 1)];
    const int work_tiles = *x.work_tile_count;
    const int all = work_tiles <= 32 ? __shfl_sync(~0u, end_cost(work_tile, lane), work_tiles - 1)
                                     : end_cost(x.work_tiles[work_tiles - 1], work_tiles - 1);
    const int from = all * blockIdx.x, to = from + all;  // times the grid
    at = end = {work_tiles, 0};
    for (int base = 0; base < work_tiles; base += 32) {
      if (base > 0) work_tile = x.work_tiles[min(base + lane, work_tiles - 1)];
      find(from, base, work_tiles, work_tile, at), find(to, base, work_tiles, work_tile, end);
    }
  }
  __device__ static int cost(const WorkTile& work_tile) {
    return tile_width(work_tile.count) + kSlabPairCost;
  }
  // The cost of the work tiles up to this one.
  __device__ static int end_cost(const WorkTile& work_tile, int index) {
    return work_tile.start + index * kSlabPairCost + cost(work_tile);
  }
  // The slab pair at which spent / grid is spent, if it is in the lanes' work tiles.
  __device__ void find(int spent, int base, int work_tiles, const WorkTile& work_tile,
                       WorkPosition& place) const {
    const int index = base + (threadIdx.x & 31), grid = gridDim.x, own = cost(work_tile) * grid;
    const int rest = end_cost(work_tile, index) * grid - spent;
    const unsigned here = __ballot_sync(~0u, index < work_tiles && rest > 0 && rest <= own);
    if (here == 0) return;
    const int lane = __ffs(here) - 1;
    place = {base + lane, __shfl_sync(~0u, (own - rest) * each / own, lane)};
  }
  __device__ bool done() const { return at.work_tile == end.work_tile && at.slab_pair == end.slab_pair; }
  __device__ int left_of_work_tile() const {
    const int last = at.work_tile == end.work_tile ? end.slab_pair : each;
    return last - at.slab_pair;
  }
  __device__ void skip(int slab_pairs) {
    if ((at.slab_pair += slab_pairs) == each) ++at.work_tile, at.slab_pair = 0;
  }
};

// ---- consumers ----

// This lane's columns of the warp's six blocks: token lane / 4 of each eight.
template <int kTiles>
__device__ __forceinline__ void load_tokens(const SplitKParams& p, const WorkTile& work_tile, int warp,
                                            uint4 (&b)[kTiles][kBlocksPerWarp]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int token = i * 8 + lane / 4, permuted_row = work_tile.first + token;
    const bool valid = token < work_tile.count;
    const int64_t row = valid && p.x.rows != nullptr ? p.x.rows[permuted_row] : permuted_row;
    const uint8_t* from =
        static_cast<const uint8_t*>(p.x.x) + row * (kHidden * 2) + warp * kSlice + lane % 4 * 16;
#pragma unroll
    for (int j = 0; j < kBlocksPerWarp; ++j)
      b[i][j] = valid ? *reinterpret_cast<const uint4*>(from + j * 64) : uint4{};
  }
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
// pair's distance from the first one.
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

struct SplitKConsumer {
  uint32_t shared, sums;  // addresses; where this lane's sums go in the first buffer
  SlabOperands operands;  // the first slab pair's
  int third;
  bool first_lane;
  RingPlace<kSplitKStages> stage;
  RingPlace<kSumBuffers> buffer;

  __device__ SplitKConsumer(const SplitKShared& s, int warp, int lane)
      : shared(held(smem_addr(&s))),
        sums(held(smem_addr(&s.sums[0][warp][0][lane / 4][lane % 4]))),
        operands(smem_addr(s.slab_pair), warp, lane),
        third(warp / kWarpsPerThird),
        first_lane(held(lane) == 0) {}

  // Slab pairs [slab_pair, end). singles: FC2's first slab pair of single slabs. at_last(): before the last
  // one.
  template <bool kDown, int kTiles, class AtLast>
  __device__ __forceinline__ void slab_pairs(SplitKShared& s, const uint4 (&b)[kTiles][kBlocksPerWarp],
                                             int slab_pair, int end, int singles, const AtLast& at_last) {
#pragma unroll 1
    for (; slab_pair < end; ++slab_pair) {
      if (slab_pair == end - 1) at_last();
      mbarrier_wait(shared + static_cast<uint32_t>(offsetof(SplitKShared, full)) + stage.index * 8,
                    stage.phase);
      float sum[kTiles][4] = {};
      const Strides by = strides(kDown, slab_pair - singles);
      multiply<kTiles>(operands, stage.index * kSlabPairBytes - third * (kSlabPairThird - by.third), by.slab,
                       b, sum);
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
  SlabPairRange<kDown> range(p.x, p.layout);
  wait_for_predecessor();
  while (!range.done()) {
    WorkTile work_tile = p.x.work_tiles[range.at.work_tile];
    if (work_tile.count > 8) {
      uint4 b[2][kBlocksPerWarp];
      load_tokens<2>(p, work_tile, warp, b);
      const int slab_pair = range.at.slab_pair, slab_pairs = range.left_of_work_tile();
      consumer.slab_pairs<kDown, 2>(s, b, slab_pair, slab_pair + slab_pairs, p.layout.fc2_slab_pairs, [] {});
      range.skip(slab_pairs);
      continue;
    }
    uint4 b[1][kBlocksPerWarp], next[1][kBlocksPerWarp];
    load_tokens<1>(p, work_tile, warp, b);
    for (bool more = true; more;) {
      const int slab_pair = range.at.slab_pair, slab_pairs = range.left_of_work_tile();
      range.skip(slab_pairs);
      more = !range.done();
      if (more) work_tile = p.x.work_tiles[range.at.work_tile], more = work_tile.count <= 8;
      consumer.slab_pairs<kDown, 1>(s, b, slab_pair, slab_pair + slab_pairs, p.layout.fc2_slab_pairs, [&] {
        if (more) load_tokens<1>(p, work_tile, warp, next);
      });
#pragma unroll
      for (int j = 0; j < kBlocksPerWarp; ++j) b[0][j] = next[0][j];
    }
  }
}

}  // namespace moesaic::cuda::sm90
