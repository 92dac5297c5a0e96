// The matrix product for many tokens. Persistent thread blocks walk over tiles of 192 rows and one job's
// tokens (8 to 128). Three warpgroups have 64 rows each and feed wgmma: weights from registers, where they
// are expanded one block of 32 columns ahead of the tensor cores, activations from shared memory. A warp
// fetches its own 16 rows of weights into slots of its own, several stages and also tiles ahead, 16 bytes a
// lane; one more warp fills a ring with the activations that all share, by bulk copies. (A bulk copy costs 34
// ns of its multiprocessor however short it is: 816 bytes of a slab at a time reach 3.1 TB/s of 4.7.) The
// accumulators stay in registers for the whole contraction.
//
//   registers: a multiprocessor's quarter has a warp of each group and one that loads, 128 each at the start;
//   the loading ones hand most of theirs over, so that a consumer has 160, 64 of them accumulators
//   bytes: weights once per job, a job's activations once per 192 rows (both from L2 where neighbours share
//   them)
#pragma once

#include <algorithm>

#include "backend/cuda/kernels/common/dequant.cuh"
#include "backend/cuda/kernels/common/gemm_tile.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/kernels/ptx/wgmma.cuh"
#include "backend/cuda/kernels/sm90/gemm_wgmma.h"
#include "backend/cuda/kernels/sm90/slab.cuh"

namespace moesaic::cuda::sm90a {

inline constexpr int kGroups = 3;  // warpgroups that consume
inline constexpr int kGroupRows = 64;
inline constexpr int kTileRows = kGroups * kGroupRows;
inline constexpr int kWideWarps = 4 * kGroups;
inline constexpr int kWideThreads = 128 * (kGroups + 1);
inline constexpr int kFewestStages = 7;  // of a tile: who begins one has fetched into it, or to its end
inline constexpr int kSharedLimit = 233472, kSharedReserved = 1024;  // of a multiprocessor; of each block

struct WideParams {
  const uint8_t* weights;
  const uint8_t* scales;  // dense, of a byte: of a Matrix, as tops
  const uint8_t* tops;
  Tiles x;
  int row_tiles;  // of an expert
  int units;      // dense: of 32 rows
  int stages;     // along the contraction
  float factor;
};

__device__ inline Job job_at(const Tiles& t, int index) {
  if (t.jobs != nullptr) return t.jobs[index];
  return {0, index * t.tile, min(t.tile, t.tokens - index * t.tile), index * t.tile};
}
// Tokens that the job's tile has room for.
__device__ inline int width_of(const Tiles& t, const Job& job) {
  return t.jobs != nullptr ? tile_width(job.count) : t.tile;
}
__device__ inline int jobs_of(const Tiles& t) {
  return t.jobs != nullptr ? *t.job_count : (t.tokens + t.tile - 1) / t.tile;
}

// The same in all lanes, so that it may live in a uniform register.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }
__device__ inline int warp_index() { return uniform(threadIdx.x / 32); }

// ---- weights: what a stage holds of a warp's 16 rows, and how they become A fragments ----

// F16's 2^(s + shift - 15) of the E8M0 scales s in two bytes, zero below its normal numbers. shifts: of each,
// in halves.
__device__ __forceinline__ __half2 relative_scales(uint32_t two, uint32_t shifts) {
  const uint32_t bits = __viaddmax_s16x2(__byte_perm(two, 0, 0x4140), shifts, 0) << 10;
  return *reinterpret_cast<const __half2*>(&bits);
}
// The values of `pair`, which are F16.
__device__ __forceinline__ uint32_t scaled(uint32_t pair, __half2 factor) {
  const __half2 v = __hmul2(*reinterpret_cast<const __half2*>(&pair), factor);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// MXFP4 from slabs. A weight becomes value * 2^(s - top), exact in F16 where the block's scale is within 24
// binades of the row's largest, `top`; 2^(top - 128), which is owed, is factor(). A stage is what one warp of
// the decode kernel takes of a slab: 6 blocks. 27 instructions expand 16 rows of a block.
template <bool kDown>
struct SlabWeights {
  static constexpr bool kBf16 = false, kGrouped = true;
  static constexpr int kBlocks = kBlocksPerWarp, kStageBytes = 2 * kWarpBytes;
  static constexpr size_t kExpertBytes = kDown ? kFc2Bytes : kFc1Bytes;
  uint32_t words[2][6];
  __half2 factors[2][3];  // of two blocks each

  struct Tops {  // what the scales of rows lane / 4 and + 8 are measured by
    uint8_t top[2];
    __device__ float factor(int h) const { return __uint_as_float((top[h] - 1u) << 23); }
    __device__ uint32_t shifts(int h) const { return ((30u - top[h]) & 0xFFFFu) * 0x10001u; }
  };
  // Sixteen rows: a unit.
  struct Source {
    const uint8_t* slab;  // the upper one, this lane's next 16 bytes
    int unit;             // from FC2's first one of single slabs on
    Tops tops;
    __device__ void open(const WideParams& p, int expert, int row, int lane) {
      const uint8_t* weights = p.weights + expert * kExpertBytes;
      slab = weights + slab_offset(p.x.layout, kDown, row / 8, 0, lane * 16);
      unit = row / 16 - p.x.layout.fc2_units;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        tops.top[h] =
            __ldg(weights + slab_offset(p.x.layout, kDown, row / 8 + h, kTopThird, kThirdTop + lane / 4));
    }
    // 102 vectors of 16 bytes; of 51 a slab the second 32 belong to both. left: stages, this one counted.
    __device__ void fetch(uint8_t* to, int left, int lane) {
      constexpr int kVectors = kWarpBytes / 16;
      const Strides by = strides(kDown, unit);
      const uint8_t* lower = slab + by.slab - kVectors * 16;
      to += lane * 16;
      copy_async(to, slab);
      copy_async(to + 512, (lane < kVectors - 32 ? slab : lower) + 512);
      copy_async(to + 1024, lower + 1024);
      if (lane < 2 * kVectors - 96) copy_async(to + 1536, lower + 1536);
      slab += kWarpBytes + (left % kWarpsPerThird == 1 ? by.third - kThirdBias : 0);
    }
  };

  __device__ void load(const uint8_t* stage, const Tops& tops, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint8_t* slab = stage + h * kWarpBytes;
      const uint4 u = *reinterpret_cast<const uint4*>(slab + lane * 16);
      const uint2 v = *reinterpret_cast<const uint2*>(slab + kWarpTail + lane * 8);
      words[h][0] = u.x, words[h][1] = u.y, words[h][2] = u.z, words[h][3] = u.w;
      words[h][4] = v.x, words[h][5] = v.y;
#pragma unroll
      for (int i = 0; i < 3; ++i)
        factors[h][i] = relative_scales(
            reinterpret_cast<const uint16_t*>(slab + kWarpScales)[lane / 4 * 3 + i], tops.shifts(h));
    }
  }
  __device__ void expand(int block, uint32_t (&a)[8]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const __half2 factor =
          block % 2 == 0 ? __low2half2(factors[h][block / 2]) : __high2half2(factors[h][block / 2]);
      uint32_t d[4];
      decode(words[h][block], d);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[2 * i + h] = scaled(d[i], factor);
    }
  }
};

// 16-bit weights in matrix.h's order, two blocks a stage.
template <bool kBf16_>
struct PlainWeights {
  static constexpr bool kBf16 = kBf16_, kGrouped = false;
  static constexpr int kBlocks = 2, kHalfBlock = 1024, kStageBytes = kBlocks * kHalfBlock;
  const uint8_t* at;

  struct Tops {
    __device__ float factor(int) const { return 1.0f; }
  };
  struct Source {
    const uint8_t* data;
    Tops tops;
    // Rows that do not exist are read from the last unit, and not stored.
    __device__ void open(const WideParams& p, int, int row, int lane) {
      const int64_t unit = min(row / kUnit, p.units - 1);
      data = p.weights + unit * p.stages * (2 * kStageBytes) + row / 16 % 2 * kHalfBlock + lane * 16;
    }
    __device__ void fetch(uint8_t* to, int, int lane) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        copy_async(to + i * 512 + lane * 16, data + i / 2 * (2 * kHalfBlock) + i % 2 * 512);
      data += 2 * kStageBytes;
    }
  };

  __device__ void load(const uint8_t* stage, const Tops&, int lane) { at = stage + lane * 16; }
  __device__ void expand(int block, uint32_t (&a)[8]) const {
    const uint4 lo = *reinterpret_cast<const uint4*>(at + block * kHalfBlock);
    const uint4 hi = *reinterpret_cast<const uint4*>(at + block * kHalfBlock + 512);
    a[0] = lo.x, a[1] = lo.y, a[2] = lo.z, a[3] = lo.w;
    a[4] = hi.x, a[5] = hi.y, a[6] = hi.z, a[7] = hi.w;
  }
};

// Weights of a byte in matrix.h's order, two blocks a stage, with the scales of all 32 rows of the unit.
template <class Codes>
struct ByteWeights {
  static constexpr bool kBf16 = false, kGrouped = false;
  static constexpr int kBlocks = 2, kHalfBlock = 512, kDataBytes = kBlocks * kHalfBlock;
  static constexpr int kScaleBytes = kBlocks * Codes::kScaleBytes, kStageBytes = kDataBytes + kScaleBytes;
  const uint8_t* at;
  __half2 factors[kBlocks];  // of rows lane / 4 and + 8

  using Tops = typename Codes::Tops;
  struct Source {
    const uint8_t *data, *scales;  // this lane's next 16 bytes
    Tops tops;
    // Rows that do not exist are read from the last unit, and not stored.
    __device__ void open(const WideParams& p, int, int row, int lane) {
      const int64_t unit = min(row / kUnit, p.units - 1);
      tops.half = row / 16 % 2;
      data = p.weights + unit * p.stages * (2 * kDataBytes) + tops.half * kHalfBlock + lane * 16;
      scales = p.scales + unit * p.stages * kScaleBytes + lane * 16;
      tops.open(p.tops + unit * kUnit, lane);
    }
    __device__ void fetch(uint8_t* to, int, int lane) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        copy_async(to + i * kHalfBlock + lane * 16, data + i * (2 * kHalfBlock));
      if (lane < kScaleBytes / 16) copy_async(to + kDataBytes + lane * 16, scales);
      data += 2 * kDataBytes, scales += kScaleBytes;
    }
  };

  __device__ void load(const uint8_t* stage, const Tops& tops, int lane) {
    at = stage + lane * 16;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      factors[i] = Codes::scales(stage + kDataBytes + i * Codes::kScaleBytes, tops, lane);
  }
  __device__ void expand(int block, uint32_t (&a)[8]) const {
    const uint4 v = *reinterpret_cast<const uint4*>(at + block * kHalfBlock);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    const __half2 upper = __low2half2(factors[block]), lower = __high2half2(factors[block]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 f16 = Codes::to_f16(words[i]);
      a[2 * i] = scaled(f16.x, upper), a[2 * i + 1] = scaled(f16.y, lower);
    }
  }
};

// A weight becomes value * 2^(6 + s - top), exact in F16 where the block's scale is within 20 binades of the
// row's largest.
struct Mxfp8Codes {
  static constexpr int kScaleBytes = 32;
  struct Tops {
    uint32_t shifts;  // 21 - top of rows lane / 4 and + 8, in halves
    int half;         // the warp's rows' half of the unit
    __device__ void open(const uint8_t* tops, int lane) {
      tops += lane / 4 * 4 + 2 * half;
      shifts = ((21u - __ldg(tops)) & 0xFFFFu) | (21u - __ldg(tops + 1)) << 16;
    }
    __device__ float factor(int h) const {
      return __uint_as_float((21u - (shifts >> 16 * h)) << 23 & 0x7F800000u) * 0x1p-6f;
    }
  };
  __device__ static __half2 scales(const uint8_t* block, const Tops& tops, int lane) {
    return relative_scales(reinterpret_cast<const uint16_t*>(block)[lane / 4 * 2 + tops.half], tops.shifts);
  }
  __device__ static uint2 to_f16(uint32_t word) { return e4m3_to_f16(word); }
};

// A weight becomes code * scale, rounded to F16. No scale may be above 511.
struct Q8Codes {
  static constexpr int kScaleBytes = 64;
  struct Tops {
    int half;
    __device__ void open(const uint8_t*, int) {}
    __device__ float factor(int) const { return 1.0f; }
  };
  __device__ static __half2 scales(const uint8_t* block, const Tops& tops, int lane) {
    return reinterpret_cast<const __half2*>(block)[lane / 4 * 2 + tops.half];
  }
  __device__ static uint2 to_f16(uint32_t word) {
    return {Q8Source::widen(word, 0x4140), Q8Source::widen(word, 0x4342)};
  }
};

// ---- shared memory ----

// kSlots: stages of weights. kSteps: 64-column steps of a stage of activations.
template <class Weights, int kTile, bool kStages_>
struct WidePlan {
  static constexpr int kSlots = kTile >= 64 ? 4 : 8;
  static_assert(kSlots - 1 <= kFewestStages);
  static constexpr int kSteps = kTile >= 64 ? 1 : Weights::kBlocks / 2;
  static constexpr int kWeightBytes = kSlots * kWideWarps * Weights::kStageBytes;
  static constexpr int kStaging = kStages_ ? kGroups * kTile * 64 : 0;  // the epilogue's
  static constexpr int kStageBytes = kTile * 128 * kSteps;
  static constexpr int kBarriers = 1024;
  static constexpr int kStages =
      std::min(24, (kSharedLimit - kSharedReserved - kBarriers - kStaging - kWeightBytes) / kStageBytes);
  static constexpr int kShared = kStages * kStageBytes + kWeightBytes + kStaging + kBarriers;
  static_assert(kStages >= 3);

  uint8_t* base;
  __device__ uint8_t* activations(int stage) const { return base + stage * kStageBytes; }
  __device__ uint8_t* weights(int slot, int warp) const {
    return base + kStages * kStageBytes + (slot * kWideWarps + warp) * Weights::kStageBytes;
  }
  __device__ uint8_t* staging(int group) const {
    return base + kStages * kStageBytes + kWeightBytes + group * (kTile * 64);
  }
  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(base + kShared - kBarriers) + stage;
  }
  __device__ uint64_t* empty(int stage) const { return full(stage) + kStages; }
};

// ---- producer: one warp, of which one lane works ----

template <class Plan>
__device__ void produce(const WideParams& p, const Plan& plan) {
  const int tiles = jobs_of(p.x) * p.row_tiles, steps = p.x.cols / kWideStep;
  RingPlace<Plan::kStages> at;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Job job = job_at(p.x, tile / p.row_tiles);
    const int bytes = width_of(p.x, job) * 128 * Plan::kSteps;
    const uint8_t* from =
        static_cast<const uint8_t*>(p.x.data) + static_cast<int64_t>(job.start) * p.x.cols * 2;
    for (int s = 0; s < steps; s += Plan::kSteps, from += bytes, at.next()) {
      mbar_wait(plan.empty(at.index), at.phase ^ 1);
      mbar_expect(plan.full(at.index), bytes);
      bulk_copy(plan.activations(at.index), from, bytes, plan.full(at.index));
    }
  }
}

// ---- consumers ----

// A warp's weights, ahead of their use: the stages of this tile and the next ones.
template <class Weights, class Plan>
struct WeightStream {
  typename Weights::Source source;
  int tile, left, slot = 0;  // stages left of the tile

  __device__ WeightStream(const WideParams& p, const Plan& plan, int tiles, int warp) : tile(blockIdx.x) {
    open(p, tiles, warp);
    for (int i = 0; i < Plan::kSlots - 1; ++i) fetch(p, plan, tiles, warp);
  }
  __device__ static int row(const WideParams& p, int tile, int warp) {
    return tile % p.row_tiles * kTileRows + 16 * warp;
  }
  __device__ void open(const WideParams& p, int tiles, int warp) {
    left = tile < tiles ? p.stages : 0;
    if (tile < tiles)
      source.open(p, job_at(p.x, tile / p.row_tiles).expert, row(p, tile, warp), threadIdx.x % 32);
  }
  // The next stage into the next slot.
  __device__ void fetch(const WideParams& p, const Plan& plan, int tiles, int warp) {
    if (left == 0 && tile < tiles) tile += gridDim.x, open(p, tiles, warp);
    if (left > 0) source.fetch(plan.weights(slot, warp), left--, threadIdx.x % 32);
    copy_async_commit();
    if (++slot == Plan::kSlots) slot = 0;
  }
  // The slot of the stage that is to be used: the oldest.
  __device__ int oldest() const { return slot + 1 == Plan::kSlots ? 0 : slot + 1; }
};

// A consumer's way through the activations.
template <class Plan>
struct WideReader {
  RingPlace<Plan::kStages> at;
  __device__ uint32_t open(const Plan& plan) const {
    mbar_wait(plan.full(at.index), at.phase);
    return smem_addr(plan.activations(at.index));
  }
  // The stage before `at` may be filled again; for all threads that the barrier counts together.
  __device__ void release(const Plan& plan) const {
    const int before = at.index == 0 ? Plan::kStages - 1 : at.index - 1;
    if (threadIdx.x % 128 == 0) mbar_arrive(plan.empty(before));
  }
};

// A stage of weights by wgmma: the products of one block run while the next block is expanded. kDrain: none
// runs on when the stage ends. first: none runs yet.
template <int N, bool kDrain, class Weights, class Plan, int kSums>
__device__ __forceinline__ void multiply_group(const Plan& plan, const Weights& w, WideReader<Plan>& x,
                                               bool first, float (&sum)[kSums]) {
  constexpr int kStageBlocks = 2 * Plan::kSteps;
  float(&head)[N / 2] = reinterpret_cast<float(&)[N / 2]>(sum);
  uint32_t operand = 0, a[2][8];
#pragma unroll
  for (int b = 0; b < Weights::kBlocks; ++b) {
    if (b % kStageBlocks == 0) operand = wgmma_operand(x.open(plan));
    wgmma_wait<1>();  // the product that read a[b & 1] has ended
    if (b % kStageBlocks == 1 && (b > 1 || (!kDrain && !first))) x.release(plan);
    w.expand(b, a[b & 1]);
    wgmma_fence();
    const uint32_t part = operand + (b % kStageBlocks / 2 * (N * 128) + b % 2 * 64) / 16;
    Wgmma<N>::template run<Weights::kBf16>(head, a[b & 1], part);
    Wgmma<N>::template run<Weights::kBf16>(head, a[b & 1] + 4, part + 2);
    wgmma_commit();
    if (b % kStageBlocks == kStageBlocks - 1) x.at.next();
  }
  if constexpr (kDrain) {
    wgmma_wait<0>();
    x.release(plan);
  }
}

// A stage with the narrowest width that holds the tokens: 8 or 16 * sixteenths, between kLow and kHigh. The
// widths branch within the loop over the stages, and no product is under way where they meet: otherwise the
// compiler runs out of registers and serialises wgmma.
template <int kLow, int kHigh, class Weights, class Plan, int kSums>
__device__ __forceinline__ void multiply(int sixteenths, const Plan& plan, const Weights& w,
                                         WideReader<Plan>& x, float (&sum)[kSums]) {
  if constexpr (kLow < kHigh) {
    constexpr int kMiddle = (kLow + kHigh) / 2;
    if (sixteenths <= kMiddle) return multiply<kLow, kMiddle>(sixteenths, plan, w, x, sum);
    return multiply<kMiddle + 1, kHigh>(sixteenths, plan, w, x, sum);
  } else {
    constexpr int kWidth = kLow == 0 ? 8 : 16 * kLow;
    multiply_group<kWidth, true>(plan, w, x, false, sum);
  }
}

// kDrain: no product runs from one stage on to the next; else the tile is full.
template <bool kDrain, class Weights, class Plan, int kSums>
__device__ __forceinline__ void contract_stages(const WideParams& p, const Plan& plan, int tiles,
                                                int sixteenths, WeightStream<Weights, Plan>& stream,
                                                WideReader<Plan>& x, float (&sum)[kSums]) {
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const typename Weights::Tops tops = stream.source.tops;
#pragma unroll 1
  for (int s = 0; s < p.stages; ++s) {
    copy_async_wait<Plan::kSlots - 2>();
    __syncwarp();
    Weights w;
    w.load(plan.weights(stream.oldest(), warp), tops, lane);
    stream.fetch(p, plan, tiles, warp);
    if constexpr (kDrain) {
      multiply<0, kSums / 8>(sixteenths, plan, w, x, sum);
    } else {
      multiply_group<2 * kSums, false>(plan, w, x, s == 0, sum);
    }
  }
  if constexpr (!kDrain) {
    wgmma_wait<0>();
    x.release(plan);
  }
}
// One tile's 64 rows of a warpgroup: sum += the whole contraction.
template <class Weights, class Plan, int kSums>
__device__ __forceinline__ void contract(const WideParams& p, const Plan& plan, int tiles, int tokens,
                                         WeightStream<Weights, Plan>& stream, WideReader<Plan>& x,
                                         float (&sum)[kSums]) {
  const int sixteenths = tile_width(tokens) / 16;
  if (!Weights::kGrouped || sixteenths == kSums / 8) {
    contract_stages<false>(p, plan, tiles, sixteenths, stream, x, sum);
  } else {
    contract_stages<true>(p, plan, tiles, sixteenths, stream, x, sum);
  }
}

// Where a warpgroup's sums stand.
struct WidePlace {
  Job job;
  int row;          // of the matrix, the warp's first of 16
  int units;        // dense: of the matrix
  float factor[2];  // of rows lane / 4 and + 8
  uint8_t* staging;
};

// Each pair of rows and token for itself.
template <int kSums, class Epilogue>
__device__ __forceinline__ void finish_tile(const Epilogue& e, const WidePlace& at,
                                            const float (&sum)[kSums]) {
  const int lane = threadIdx.x % 32, unit = at.row / kUnit, pair = at.row % kUnit / 2 + lane / 4;
  if (unit >= at.units) return;
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    if (8 * i >= at.job.count) break;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int token = 8 * i + lane % 4 * 2 + k;
      if (token < at.job.count)
        finish(e, unit, pair, at.job.first + token, at.job.expert, sum[4 * i + k] * at.factor[0],
               sum[4 * i + 2 + k] * at.factor[1]);
    }
  }
}

// Gate and up are neighbouring rows, 4 lanes apart: even rows take slab a's pairs and odd ones slab b's, a
// column of h each. The warpgroup's 32 columns go through shared memory, [token][4 chunks], to their tile.
template <int kSums>
__device__ __forceinline__ void finish_tile(const WideSwiGlu& e, const WidePlace& at,
                                            const float (&sum)[kSums]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, odd = g % 2;
  const int column = at.row / 2 + 4 * odd + g / 2;
  const int64_t bias = static_cast<int64_t>(at.job.expert) * kHidden + column;
  const float gate_bias = e.gate_bias[bias], up_bias = e.up_bias[bias];
  const float mine = odd ? at.factor[1] : at.factor[0];
  const float theirs = __shfl_xor_sync(~0u, odd ? at.factor[0] : at.factor[1], 4);
  // Column 8 warp + 4 odd + g / 2 of the 32: in wgmma's order chunk 2 odd + g / 4, byte 4 warp + 2 (g / 2 %
  // 2).
  const int byte = (2 * odd + g / 4) * 16 + warp * 4 + g / 2 % 2 * 2;
  __half* to = reinterpret_cast<__half*>(at.staging + byte);
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    if (8 * i >= at.job.count) break;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float v0 = sum[4 * i + k], v1 = sum[4 * i + 2 + k];
      const float other = __shfl_xor_sync(~0u, odd ? v0 : v1, 4) * theirs, own = (odd ? v1 : v0) * mine;
      const float y = swiglu((odd ? other : own) + gate_bias, (odd ? own : other) + up_bias);
      to[(8 * i + lane % 4 * 2 + k) * 32] = __float2half_rn(y * kHScale);
    }
  }
  const int block = at.row / 64, width = tile_width(at.job.count), group = threadIdx.x / 128 + 1;
  group_barrier(group);
  uint8_t* out = e.out + static_cast<int64_t>(at.job.start) * (kHidden * 2) +
                 static_cast<int64_t>(block / 2) * width * 128;
  for (int i = threadIdx.x % 128; i < at.job.count * 4; i += 128) {
    const int token = i / 4, at_chunk = chunk_place(block % 2 * 4 + i % 4, token);
    *reinterpret_cast<uint4*>(out + token * 128 + at_chunk * 16) =
        *reinterpret_cast<const uint4*>(at.staging + i * 16);
  }
  group_barrier(group);
}

template <class Weights, int kTile, class Plan, class Epilogue>
__device__ void consume(const WideParams& p, const Plan& plan, const Epilogue& e) {
  const int warp = warp_index(), tiles = uniform(jobs_of(p.x)) * p.row_tiles;
  WeightStream<Weights, Plan> stream(p, plan, tiles, warp);  // does not depend on the kernel before
  wait_for_predecessor();
  WideReader<Plan> x;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    WidePlace at{.job = job_at(p.x, tile / p.row_tiles),
                 .row = stream.row(p, tile, warp),
                 .units = p.units,
                 .factor = {stream.source.tops.factor(0) * p.factor, stream.source.tops.factor(1) * p.factor},
                 .staging = plan.staging(warp / 4)};
    float sum[kTile / 2] = {};
    contract<Weights>(p, plan, tiles, at.job.count, stream, x, sum);
    finish_tile(e, at, sum);
  }
}

template <class Weights, int kTile, class Epilogue>
using PlanOf = WidePlan<Weights, kTile, std::is_same_v<Epilogue, WideSwiGlu>>;

template <class Weights, int kTile, class Epilogue>
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const WideParams p, const Epilogue e) {
  extern __shared__ __align__(1024) uint8_t wide_shared[];
  using Plan = PlanOf<Weights, kTile, Epilogue>;
  const Plan plan{wide_shared};
  if (threadIdx.x == 0) {
    for (int s = 0; s < Plan::kStages; ++s) mbar_init(plan.full(s), 1), mbar_init(plan.empty(s), kGroups);
    mbar_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 32 * kWideWarps) {
    take_registers<160>();
    consume<Weights, kTile>(p, plan, e);
  } else {
    leave_registers<24>();
    wait_for_predecessor();
    start_successor();
    if (threadIdx.x == 32 * kWideWarps) produce(p, plan);
  }
}

template <class Weights, int kTile, class Epilogue>
Status launch_wide(const WideParams& p, const Epilogue& e, cudaStream_t stream) {
  using Plan = PlanOf<Weights, kTile, Epilogue>;
  constexpr int kShared = Plan::kShared;
  const auto kernel = wide_kernel<Weights, kTile, Epilogue>;
  static OncePerDevice prepared;
  const Status status = prepared.run([&] { return set_attributes(kernel, {.max_shared = kShared}); });
  if (!status.ok()) return status;
  const int most =
      (p.x.jobs != nullptr ? p.x.most_jobs : (p.x.tokens + p.x.tile - 1) / p.x.tile) * p.row_tiles;
  return launch(kernel, dim3(min(most, p.x.layout.sms)), dim3(kWideThreads), kShared, stream, p, e);
}

template <class Weights, class Epilogue>
Status launch_wide(const WideParams& p, const Epilogue& e, cudaStream_t stream) {
  if (p.x.tile <= 32) return launch_wide<Weights, 32>(p, e, stream);
  if (p.x.tile <= 64) return launch_wide<Weights, 64>(p, e, stream);
  if constexpr (!Weights::kGrouped) {
    if (p.x.tile <= 112) return launch_wide<Weights, 112>(p, e, stream);
  }
  return launch_wide<Weights, 128>(p, e, stream);
}

}  // namespace moesaic::cuda::sm90a
