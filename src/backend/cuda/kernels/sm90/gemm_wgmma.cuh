// y = W x for many tokens by wgmma: the experts' products (MXFP4 slabs, grouped) and dense matrices. On
// devices without wgmma the experts' products by mma.sync, from the same operands.
//
// Maths    y[token, row] = factor * sum_k W[row, k] x[token, k], then the epilogue: Store (+ bias),
//          SwiGLU into the second product's activations, or Qkv (bias, RoPE, append).
// Shapes   work tile: 192 rows x up to 128 tokens of one expert (WorkTile), 192 in FP8 and of a dense
//          product; cols a multiple of 64. Weights: slabs (slab_layout.h) or matrix.h's order, 16 rows a
//          warp; activations: ActivationTiles (gemm_wgmma.h), swizzled.
//
// Grid     persistent CTAs, at most one a multiprocessor: CTA c takes work tiles c, c + grid, ..
// CTA      warpgroups 0 to 2: 64 rows each, M of wgmma; tokens are N. A operand from registers: a warp
//          fetches its own 16 rows by cp.async into slots of its own, several stages and also tiles
//          ahead, and expands them one block of 32 columns ahead of the tensor cores. (A bulk copy costs
//          34 ns of its multiprocessor however short it is: 816 bytes of a slab at a time reach 3.1 TB/s
//          of 4.7.) B from shared memory.
//          warpgroup 3: one lane fills a ring with the activations, by bulk copies.
//          The accumulators stay in registers for the whole contraction.
//
// Split    (dense) where there are fewer tiles than multiprocessors, the CTAs of a cluster take a part of the
//          contraction each. Their sums go to their shared memory, and each CTA finishes a part of the
//          tokens, for which it adds all CTAs' sums in the order of the contraction.
//
// mma.sync Each warp reads B itself, by ldmatrix, where a warpgroup's wgmma reads it once. Tiles of up to 64
//          tokens: with the sums of 128 the compiler runs out of registers.
//
// Barriers full[stage]: activations have landed     empty[stage]: the three warpgroups' wgmmas, or all warps,
//          have read them. Weights need none: a warp waits for its own cp.async groups and meets
//          (__syncwarp).
// Ordering A warpgroup releases a stage after warpgroup_wait says that the products which read it have
//          ended. Its thread 0 arrives for all, as in CUTLASS's PipelineTmaAsync: a wgmma is one
//          operation of the four warps, and what its completion says holds for all of it. By mma.sync a lane
//          of each warp does, behind __syncwarp.
//          Weights may be fetched before the predecessor has ended (they were loaded with the model; work
//          tiles must be older than the predecessor); activations are not.
//          Sums of a cluster lie in the ring: all warps of the CTA are done with it (__syncthreads), and no
//          CTA ends while others read its sums (the cluster's second barrier).
// Resident Only the CTAs of a cluster wait for each other; they are scheduled together.
//
// Bytes    weights once per work tile's tokens, activations once per 192 rows; both from L2 where
//          neighbours share them. Shared memory: up to 227 KB, one CTA a multiprocessor (WgmmaShared).
//          Registers: a multiprocessor's quarter has a warp of each warpgroup, 128 each at the start; the
//          loading ones hand most of theirs over, so that a consumer has 160, 64 of them accumulators.
// Floor    max(bytes / bandwidth, 2 rows cols tokens / rate); expanding MXFP4 takes 27 instructions for
//          16 rows of a block. mma.sync: a warp reads 32 bytes of shared memory for 16 x 16 products, so
//          128 bytes a clock are 1,024 products a multiprocessor, where wgmma does 2,048.
#pragma once

#include "backend/cuda/kernels/sm90/gemm_wgmma_finish.cuh"

namespace moesaic::cuda::sm90 {

inline WgmmaParams slab_params(const uint8_t* weights, const ActivationTiles& x, int rows, float factor) {
  return {.weights = weights,
          .x = x,
          .row_tiles = (rows + kTileRows - 1) / kTileRows,
          .weight_tiles = rows / kWeightTileRows,
          .stages = kBlocks / kBlocksPerWarp,
          .split = 1,
          .factor = factor};
}

// ---- shared memory ----

// kSlots: stages of weights. kSteps: 64-column steps of a stage of activations.
template <class Weights, int kTile>
struct WgmmaShared {
  static constexpr bool kWgmma = Weights::kWgmma;
  static constexpr int kReaders = kWgmma ? kGroups : kWgmmaWarps * kWarpArrivals;  // they release a stage
  static constexpr int kSlots = kTile >= 64 ? 4 : 7;
  static_assert(kSlots - 1 <= kFewestStages);
  static constexpr int kSteps = kTile >= 64 && !Weights::kFp8 ? 1 : Weights::kBlocks / 2;
  static constexpr int kWeightBytes = kSlots * kWgmmaWarps * Weights::kStageBytes;
  static constexpr int kRowBytes = kStepBytes<Weights::kFp8>;
  static constexpr int kStaging = kGroups * kStagingBytes;  // the epilogue's
  static constexpr int kStageBytes = kTile * kRowBytes * kSteps;
  static constexpr int kBarriers = 1024;
  static constexpr int kStages =
      std::min(24, (kSharedLimit - kSharedReserved - kBarriers - kStaging - kWeightBytes) / kStageBytes);
  static constexpr int kShared = kStages * kStageBytes + kWeightBytes + kStaging + kBarriers;
  static_assert(kStages >= 3);

  uint8_t* base;
  __device__ uint8_t* activations(int stage) const { return base + stage * kStageBytes; }
  __device__ uint8_t* weights(int slot, int warp) const {
    return base + kStages * kStageBytes + (slot * kWgmmaWarps + warp) * Weights::kStageBytes;
  }
  __device__ uint8_t* staging(int group) const {
    return base + kStages * kStageBytes + kWeightBytes + group * kStagingBytes;
  }
  // A warp's sums, [kTile / 8][32 lanes], where the ring was.
  __device__ float4* sums(int warp) const {
    static_assert(kWgmmaWarps * kTile * 64 <= kStages * kStageBytes + kWeightBytes);
    return reinterpret_cast<float4*>(base) + warp * (kTile * 4);
  }
  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(base + kShared - kBarriers) + stage;
  }
  __device__ uint64_t* empty(int stage) const { return full(stage) + kStages; }
};

// ---- what a CTA does: tiles first, first + stride, .., and of each these stages ----

struct TilePlace {
  int work_tile, row_tile;
};
__device__ inline int first_row(const TilePlace& place, int warp) {
  return place.row_tile * kTileRows + 16 * warp;
}
// tiles: of the whole product.
template <class Weights>
__device__ TilePlace place_of(const WgmmaParams& p, int tile, int tiles) {
  const int work_tiles = tiles / p.row_tiles;
  if (!Weights::kGrouped && p.tokens_first) return {tile % work_tiles, tile / work_tiles};
  return {tile / p.row_tiles, tile % p.row_tiles};
}

struct Share {
  int first, stride, first_stage, stages;
};
template <class Weights>
__device__ Share share_of(const WgmmaParams& p) {
  if (Weights::kGrouped || p.split == 1)
    return {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), 0, p.stages};
  const int rank = blockIdx.x % p.split, first_stage = p.stages * rank / p.split;
  return {static_cast<int>(blockIdx.x) / p.split, static_cast<int>(gridDim.x) / p.split, first_stage,
          p.stages * (rank + 1) / p.split - first_stage};
}

// ---- producer: one warp, of which one lane works ----

template <class Weights, class Plan>
__device__ void produce(const WgmmaParams& p, const Plan& plan) {
  constexpr int kStageSteps = Weights::kBlocks / 2;  // 64 columns each
  const Share share = share_of<Weights>(p);
  const int tiles = work_tile_count_of(p.x) * p.row_tiles, steps = share.stages * kStageSteps;
  RingPlace<Plan::kStages> at;
  for (int tile = share.first; tile < tiles; tile += share.stride) {
    const WorkTile work_tile = work_tile_at(p.x, place_of<Weights>(p, tile, tiles).work_tile);
    const int width = width_of(p.x, work_tile) * Plan::kRowBytes, bytes = width * Plan::kSteps;
    const uint8_t* from = static_cast<const uint8_t*>(p.x.data) +
                          static_cast<int64_t>(work_tile.start) * p.x.cols / 64 * Plan::kRowBytes +
                          static_cast<int64_t>(share.first_stage) * kStageSteps * width;
    for (int s = 0; s < steps; s += Plan::kSteps, from += bytes, at.next()) {
      mbarrier_wait(plan.empty(at.index), at.phase ^ 1);
      mbarrier_arrive_expect_tx(plan.full(at.index), bytes);
      cp_async_bulk(plan.activations(at.index), from, bytes, plan.full(at.index));
    }
  }
}

// ---- consumers ----

// A warp's weights, ahead of their use: the stages of this tile and the next ones.
template <class Weights, class Plan>
struct WeightStream {
  typename Weights::Source source;
  const Share share;
  int tile, left, slot = 0;  // stages left of the tile

  __device__ WeightStream(const WgmmaParams& p, const Plan& plan, int tiles, int warp)
      : share(share_of<Weights>(p)), tile(share.first) {
    open(p, tiles, warp);
    for (int i = 0; i < Plan::kSlots - 1; ++i) fetch(p, plan, tiles, warp);
  }
  __device__ void open(const WgmmaParams& p, int tiles, int warp) {
    left = tile < tiles ? share.stages : 0;
    if (tile >= tiles) return;
    const TilePlace place = place_of<Weights>(p, tile, tiles);
    source.open(p, work_tile_at(p.x, place.work_tile).expert, first_row(place, warp), share.first_stage,
                threadIdx.x % 32);
  }
  // The next stage into the next slot.
  __device__ void fetch(const WgmmaParams& p, const Plan& plan, int tiles, int warp) {
    if (left == 0 && tile < tiles) tile += share.stride, open(p, tiles, warp);
    if (left > 0) source.fetch(plan.weights(slot, warp), left--, threadIdx.x % 32);
    cp_async_commit_group();
    if (++slot == Plan::kSlots) slot = 0;
  }
  // The slot of the stage that is to be used: the oldest.
  __device__ int oldest() const { return slot + 1 == Plan::kSlots ? 0 : slot + 1; }
};

// A consumer's position in the ring of activations.
template <class Plan>
struct ActivationReader {
  RingPlace<Plan::kStages> at;
  __device__ uint32_t open(const Plan& plan) const {
    mbarrier_wait(plan.full(at.index), at.phase);
    return smem_addr(plan.activations(at.index));
  }
  // The stage before `at` may be filled again; for all threads that the barrier counts together.
  __device__ void release(const Plan& plan) const {
    const int before = at.index == 0 ? Plan::kStages - 1 : at.index - 1;
    if constexpr (Plan::kWgmma) {
      if (threadIdx.x % 128 == 0) mbarrier_arrive(plan.empty(before));
    } else {
      __syncwarp();
      if (arrives(threadIdx.x % 32 == 0)) mbarrier_arrive(plan.empty(before));
    }
  }
};

// sum += a block's 32 columns, by wgmma.
template <int N, class Weights>
__device__ __forceinline__ void multiply_block(float (&sum)[N / 2], const uint32_t (&a)[8],
                                               uint32_t operand) {
  if constexpr (Weights::kFp8) {
    Wgmma<N>::run_fp8(sum, a, operand);
  } else {
    Wgmma<N>::template run<Weights::kBf16>(sum, a, operand);
    Wgmma<N>::template run<Weights::kBf16>(sum, a + 4, operand + 2);
  }
}

// A stage of weights by wgmma: the products of one block run while the next block is expanded. kDrain: waits
// for all of them at the end. first: no product is in flight yet.
template <int N, bool kDrain, class Weights, class Plan, int kSums>
__device__ __forceinline__ void multiply_group(const Plan& plan, const Weights& w, ActivationReader<Plan>& x,
                                               bool first, float (&sum)[kSums]) {
  constexpr int kStageBlocks = 2 * Plan::kSteps;
  float(&head)[N / 2] = reinterpret_cast<float(&)[N / 2]>(sum);
  uint32_t operand = 0, a[2][8];
#pragma unroll
  for (int b = 0; b < Weights::kBlocks; ++b) {
    if (b % kStageBlocks == 0) operand = wgmma_operand(x.open(plan));
    warpgroup_wait<1>();  // the product that read a[b & 1] has ended
    if (b % kStageBlocks == 1 && (b > 1 || (!kDrain && !first))) x.release(plan);
    w.expand(b, a[b & 1]);
    warpgroup_arrive();
    constexpr int kRow = Plan::kRowBytes;
    multiply_block<N, Weights>(head, a[b & 1],
                               operand + (b % kStageBlocks / 2 * (N * kRow) + b % 2 * (kRow / 2)) / 16);
    warpgroup_commit_batch();
    if (b % kStageBlocks == kStageBlocks - 1) x.at.next();
  }
  if constexpr (kDrain) {
    warpgroup_wait<0>();
    x.release(plan);
  }
}

// The same by mma.sync, where a warp reads all tokens' columns for its 16 rows. operand: this lane's address
// of the first eight tokens'.
template <int N>
__device__ __forceinline__ void multiply_block(float (&sum)[N / 2], const uint32_t (&a)[8],
                                               uint32_t operand) {
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
    uint32_t b[4];
    ldmatrix_x4(b, operand + i * 8 * kStepBytes<false>);
    float(&d)[4] = reinterpret_cast<float(&)[4]>(sum[4 * i]);
    mma<false>(d, a[0], a[1], a[2], a[3], b[0], b[1]);
    mma<false>(d, a[4], a[5], a[6], a[7], b[2], b[3]);
  }
}
template <int N, class Weights, class Plan, int kSums>
__device__ __forceinline__ void multiply_stage(const Plan& plan, const Weights& w, ActivationReader<Plan>& x,
                                               float (&sum)[kSums]) {
  static_assert(Plan::kStages * Plan::kSteps < kHidden / 64);  // as gemm_wgmma_finish.cuh needs it
  constexpr int kStageBlocks = 2 * Plan::kSteps;
  float(&head)[N / 2] = reinterpret_cast<float(&)[N / 2]>(sum);
  const int token = threadIdx.x % 8, chunk = threadIdx.x % 32 / 8;
  uint32_t operand = 0;
#pragma unroll
  for (int b = 0; b < Weights::kBlocks; ++b) {
    if (b % kStageBlocks == 0) operand = x.open(plan) + token * Plan::kRowBytes;
    uint32_t a[8];
    w.expand(b, a);
    multiply_block<N>(
        head, a,
        operand + b % kStageBlocks / 2 * (N * Plan::kRowBytes) + chunk_place(b % 2 * 4 + chunk, token) * 16);
    if (b % kStageBlocks == kStageBlocks - 1) x.at.next(), x.release(plan);
  }
}

// A stage with the narrowest width that holds the tokens: 8 or 16 * sixteenths, between kLow and kHigh. The
// widths branch within the loop over the stages, and no product is in flight where they meet: otherwise the
// compiler runs out of registers and serialises wgmma.
template <int kLow, int kHigh, class Weights, class Plan, int kSums>
__device__ __forceinline__ void multiply(int sixteenths, const Plan& plan, const Weights& w,
                                         ActivationReader<Plan>& x, float (&sum)[kSums]) {
  if constexpr (kLow < kHigh) {
    constexpr int kMiddle = (kLow + kHigh) / 2;
    if (sixteenths <= kMiddle) return multiply<kLow, kMiddle>(sixteenths, plan, w, x, sum);
    return multiply<kMiddle + 1, kHigh>(sixteenths, plan, w, x, sum);
  } else {
    constexpr int kWidth = kLow == 0 ? 8 : 16 * kLow;
    if constexpr (Weights::kWgmma) {
      multiply_group<kWidth, true>(plan, w, x, false, sum);
    } else {
      multiply_stage<kWidth>(plan, w, x, sum);
    }
  }
}

// kDrain: no product stays in flight from one stage to the next. Without it the tile must be full.
template <bool kDrain, class Weights, class Plan, int kSums>
__device__ __forceinline__ void contract_stages(const WgmmaParams& p, const Plan& plan, int tiles,
                                                int sixteenths, WeightStream<Weights, Plan>& stream,
                                                ActivationReader<Plan>& x, float (&sum)[kSums]) {
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const typename Weights::Tops tops = stream.source.tops;
#pragma unroll 1
  for (int s = 0; s < stream.share.stages; ++s) {
    cp_async_wait_group<Plan::kSlots - 2>();
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
    warpgroup_wait<0>();
    x.release(plan);
  }
}
// One tile's 64 rows of a warpgroup: sum += the whole contraction.
template <class Weights, class Plan, int kSums>
__device__ __forceinline__ void contract(const WgmmaParams& p, const Plan& plan, int tiles, int tokens,
                                         WeightStream<Weights, Plan>& stream, ActivationReader<Plan>& x,
                                         float (&sum)[kSums]) {
  const int sixteenths = tile_width(tokens) / 16;
  if constexpr (Weights::kGrouped) {
    if (!Weights::kWgmma || sixteenths < kSums / 8)
      return contract_stages<true>(p, plan, tiles, sixteenths, stream, x, sum);
  }
  if constexpr (Weights::kWgmma) contract_stages<false>(p, plan, tiles, sixteenths, stream, x, sum);
}

template <class Weights, int kTile, class Plan, class Epilogue>
__device__ void consume(const WgmmaParams& p, const Plan& plan, const Epilogue& e) {
  const int warp = warp_index(), tiles = uniform(work_tile_count_of(p.x)) * p.row_tiles;
  WeightStream<Weights, Plan> stream(p, plan, tiles, warp);  // does not depend on the kernel before
  wait_for_predecessor();
  ActivationReader<Plan> x;
  for (int tile = stream.share.first; tile < tiles; tile += stream.share.stride) {
    const TilePlace place = place_of<Weights>(p, tile, tiles);
    OutputTile at{
        .work_tile = work_tile_at(p.x, place.work_tile),
        .row = first_row(place, warp),
        .weight_tiles = p.weight_tiles,
        .factor = {stream.source.tops.factor(0) * p.factor, stream.source.tops.factor(1) * p.factor},
        .staging = plan.staging(warp / 4)};
    float sum[kTile / 2] = {};
    contract<Weights>(p, plan, tiles, at.work_tile.count, stream, x, sum);
    if constexpr (!Weights::kGrouped) {
      if (p.split > 1) return join_tile(plan, e, at, p.split, sum);
    }
    finish_tile<Weights>(e, at, sum);
  }
}

template <class Weights, int kTile, class Epilogue>
__global__ void __launch_bounds__(kWgmmaThreads, 1) gemm_wgmma_kernel(const WgmmaParams p, const Epilogue e) {
  extern __shared__ __align__(1024) uint8_t wgmma_shared[];
  using Plan = WgmmaShared<Weights, kTile>;
  const Plan plan{wgmma_shared};
  if (threadIdx.x == 0) {
    for (int s = 0; s < Plan::kStages; ++s)
      mbarrier_init(plan.full(s), 1), mbarrier_init(plan.empty(s), Plan::kReaders);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 32 * kWgmmaWarps) {
    warpgroup_reg_alloc<160>();
    consume<Weights, kTile>(p, plan, e);
  } else {
    warpgroup_reg_dealloc<32>();
    wait_for_predecessor();
    launch_dependents();
    if (threadIdx.x == 32 * kWgmmaWarps) produce<Weights>(p, plan);
    if (!Weights::kGrouped && p.split > 1) {
      __syncwarp();
      watch_join();
    }
  }
}

template <class Weights, int kTile, class Epilogue>
Status launch_wgmma(const WgmmaParams& p, const Epilogue& e, cudaStream_t stream) {
  using Plan = WgmmaShared<Weights, kTile>;
  constexpr int kShared = Plan::kShared;
  const auto kernel = gemm_wgmma_kernel<Weights, kTile, Epilogue>;
  static OncePerDevice prepared;
  const Status status = prepared.run([&] { return set_attributes(kernel, {.max_shared = kShared}); });
  if (!status.ok()) return status;
  const int most =
      (p.x.work_tiles != nullptr ? p.x.most_work_tiles : (p.x.tokens + p.x.tile - 1) / p.x.tile) *
      p.row_tiles;
  if constexpr (!Weights::kGrouped) {
    if (p.split > 1)  // a cluster has one tile
      return launch_clusters(p.split, kernel, dim3(most * p.split), dim3(kWgmmaThreads), kShared, stream, p,
                             e);
  }
  return launch(kernel, dim3(min(most, p.x.layout.sms)), dim3(kWgmmaThreads), kShared, stream, p, e);
}

template <class Weights, class Epilogue>
Status launch_wgmma(const WgmmaParams& p, const Epilogue& e, cudaStream_t stream) {
  if (p.x.tile <= 32) return launch_wgmma<Weights, 32>(p, e, stream);
  if (p.x.tile <= 64) return launch_wgmma<Weights, 64>(p, e, stream);
  if constexpr (!Weights::kGrouped) {
    if (p.x.tile <= 112) return launch_wgmma<Weights, 112>(p, e, stream);
    if (p.x.tile > 128 && p.x.tile <= 160) return launch_wgmma<Weights, 160>(p, e, stream);
  }
  if constexpr (!Weights::kGrouped || Weights::kFp8) {
    if (p.x.tile > 128) return launch_wgmma<Weights, 192>(p, e, stream);
  }
  return launch_wgmma<Weights, 128>(p, e, stream);
}

}  // namespace moesaic::cuda::sm90
