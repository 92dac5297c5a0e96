// dense_decode.cu: how a product is cut into tasks, shared memory, and the warp that copies weights.
#pragma once

#include "backend/cuda/kernels/sm90/dense_decode_parts.cuh"

namespace moesaic::cuda::sm90 {

inline constexpr int kMostStages = 16;
inline constexpr bool kPrefetchesCode =
    kWarpArrivals == 1;                                 // and so reads what others write: not for racecheck
inline constexpr int kSumStride = kWeightTileRows + 4;  // floats; neighbouring tokens in different banks

// Figures that the number of tokens decides. kTiles: tiles of 8 tokens.
template <int kTiles>
struct TokenConfig {
  static constexpr int kGroups = 2, kGroupWarps = kTiles == 1 ? 8 : 4;  // multiplying warps
  static constexpr int kWarps = kGroups * kGroupWarps, kMultipliers = 32 * kWarps;
  static constexpr int kRanks = kTiles < 4 ? 2 : 4;    // CTAs of a cluster
  static constexpr int kBuffers = kTiles < 4 ? 2 : 1;  // buffers of sums
  static constexpr int kFinishers = kTiles * kBuffers, kFinisher = kWarps, kCopier = kWarps + kFinishers,
                       kThreads = (kCopier + 1) * 32;
  // Bytes of shared memory. Two CTAs of a launch that starts early would share a multiprocessor while
  // others stay empty (up to four were seen): each takes more than half of one's memory. A block of the
  // attention has room beside it.
  static constexpr int kLeast = 112 * 1024, kMost = (kTiles == 1 ? 182 : kTiles == 2 ? 216 : 208) * 1024;
  // More stages would leave no room for a CTA of the attention with all its slots.
  static constexpr int kStages = kTiles == 1 ? 8 : kMostStages;
};

// One stage of a CTA's ring: so many blocks of the contraction, or twice as many halves of them.
template <class Source>
struct RingStage {
  static constexpr int kBlocks = 16384 / Source::kBlockBytes;
  static constexpr int kScalesAt = kBlocks * Source::kBlockBytes;
  static constexpr int kBytes = kScalesAt + 2 * kBlocks * Source::kScaleBytes;
};

// How a product is cut. Cluster i computes the tasks i, i + clusters, ..: whole weight tiles, then halves
// (MMA tiles) of the last ones where that evens out the clusters. If each cluster gets one whole tile and one
// half, the half comes first: issuing its copies takes longer, and is done before the predecessor has ended.
struct TileSchedule {
  int stages;  // stages of a ring
  int whole, tasks;
  int weight_tiles, first;  // the weight tile that comes first
  int halves;               // the first task that is a half: 0 or `whole`
};
struct DenseTask {
  int weight_tile, half;  // half: -1: both
  __device__ DenseTask(const TileSchedule& cut, int index) {
    const int h = index - cut.halves;
    const bool halved = static_cast<unsigned>(h) < static_cast<unsigned>(cut.tasks - cut.whole);
    weight_tile = halved ? cut.whole + h / 2 : index < cut.whole ? index : index - cut.whole;
    half = halved ? h % 2 : -1;
    weight_tile += cut.first;
    if (weight_tile >= cut.weight_tiles) weight_tile -= cut.weight_tiles;
  }
  __device__ bool has(int m) const { return half < 0 || half == m; }
  template <class Source>
  __device__ int stage_blocks() const {
    return (half < 0 ? 1 : 2) * RingStage<Source>::kBlocks;
  }
};

// A CTA's place in the product: its cluster and, of the contraction, `blocks` blocks from `first`
// on.
template <int kRanks>
struct KSlice {
  int rank = blockIdx.x % kRanks;
  int cluster = blockIdx.x / kRanks, clusters = gridDim.x / kRanks;
  int first, blocks;
  __device__ explicit KSlice(int all)
      : first(all * rank / kRanks), blocks(all * (rank + 1) / kRanks - first) {}
};

// Lane l of a finisher sums row l of its 8 tokens, four in a float4.
inline constexpr int kPartials = kTileTokens / 4;
template <int kTiles>
struct DenseShared {
  uint64_t full[kMostStages], free[kMostStages];       // the ring's
  uint64_t summed[2], empty[2];                        // this CTA's parts of a task: all there; read
  uint64_t received[TokenConfig<kTiles>::kFinishers];  // the other CTAs' partial sums of a task
  uint64_t started;                                    // the predecessor has ended
  uint64_t landed;                                     // the rows of x, where bulk copies bring them
  float4 partials[TokenConfig<kTiles>::kFinishers][TokenConfig<kTiles>::kRanks][kPartials][32];
  float scratch[kTileTokens][TokenConfig<kTiles>::kWarps];
};

// The ring, in shared memory.
struct RingAddress {
  uint32_t data, full, free;
  template <int kTiles>
  __device__ RingAddress(const DenseShared<kTiles>& s, const uint8_t* ring)
      : data(kept(smem_addr(ring))), full(kept(smem_addr(s.full))), free(kept(smem_addr(s.free))) {}
};

// The stage that comes next.
struct RingCursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// ---- copying, by one warp ----

// Halves of blocks lie apart: as bulk copies, of 512 bytes, one thread would take longer for them than their
// bytes do. Each lane arrives for its own copies, and the first one once more for the bulk copies.
inline constexpr int kCopyArrivals = 32 + 1;
template <class Source>
__device__ void copy_stage(const DenseTask& task, uint8_t* to, const uint8_t* data, const uint8_t* scales,
                           int count, uint64_t* full, uint64_t policy) {
  constexpr int kHalf = Source::kBlockBytes / 2;
  const bool half = task.half >= 0;
  const int lane = threadIdx.x % 32, bulk = half ? 0 : count * Source::kBlockBytes;
  if (half) {
    data += task.half * kHalf;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int at = lane * 16; at < kHalf; at += 512)
        cp_async(to + i * kHalf + at, data + i * Source::kBlockBytes + at, policy);
    }
    cp_async_mbarrier_arrive(full);
  }
  if (lane > 0) return;
  mbarrier_arrive_expect_tx(full, bulk + count * Source::kScaleBytes);
  if (!half) {
    mbarrier_arrive(full, kCopyArrivals - 1);
    cp_async_bulk(to, data, bulk, full, policy);
  }
  if (Source::kScaled)
    cp_async_bulk(to + RingStage<Source>::kScalesAt, scales, count * Source::kScaleBytes, full, policy);
}

inline constexpr int kEarlyStages = 2;  // stages in flight before the predecessor has ended

template <class Source, int kTiles>
__device__ void copy_tasks(DenseShared<kTiles>& s, uint8_t* ring, const GemmParams& p,
                           const TileSchedule& cut, const KSlice<TokenConfig<kTiles>::kRanks>& part) {
  const uint64_t policy = evict_first_policy();
  RingCursor cursor, landed;
  bool calm = true;
  int in_flight = 0;
  for (int index = part.cluster; index < cut.tasks; index += part.clusters) {
    const DenseTask task(cut, index);
    const int64_t at = static_cast<int64_t>(task.weight_tile) * p.blocks + part.first;
    const uint8_t *data = p.data + at * Source::kBlockBytes, *scales = p.scales + at * Source::kScaleBytes;
    const int step = task.stage_blocks<Source>();
    for (int b = 0; b < part.blocks; b += step, cursor.next(cut.stages), ++in_flight) {
      while (calm && in_flight >= kEarlyStages) {
        if (__any_sync(0xFFFFFFFFu, mbarrier_test_wait(&s.full[landed.stage], landed.phase))) {
          landed.next(cut.stages), --in_flight;
        } else {
          calm = __any_sync(0xFFFFFFFFu, !mbarrier_test_wait(&s.started, 0));
        }
      }
      mbarrier_wait(&s.free[cursor.stage], cursor.phase ^ 1);
      copy_stage<Source>(task, ring + cursor.stage * RingStage<Source>::kBytes,
                         data + b * Source::kBlockBytes, scales + b * Source::kScaleBytes,
                         min(step, part.blocks - b), &s.full[cursor.stage], policy);
    }
  }
}

}  // namespace moesaic::cuda::sm90
