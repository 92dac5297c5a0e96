// The experts' products for about 9 to 128 tokens of a step: each warp of a CTA has a part of the
// contraction.
//
// Maths    h = swiglu(W1[e] x + b1[e]) (kDown = false), y = W2[e] h + b2[e] (kDown), of each permuted
//          row's expert e; route.h's weights are applied by the norm that follows.
// Shapes   W1 [5760, 2880], W2 [2880, 2880] MXFP4 in slabs (slab_layout.h). A slab pair has 16
//          rows. Work tile: up to 16 permuted rows of one expert. x [rows, 2880] F16,
//          h [permuted rows, 2880] F16, y [permuted rows, 2880].
//
// Grid     one CTA a multiprocessor. CTAs share the slab pairs of all work tiles evenly and in order,
//          so that the last ones end together, and a CTA changes the work tile, and reloads activations,
//          hardly ever.
// CTA      consumers, 15 warps: 6 of the 90 blocks of the contraction each. The activations of eight tokens
//          stay in registers, those of eight more in shared memory (in registers they were spilled)
//          finishers: add the 15 parts up, bias, SwiGLU, store. One warp in the second product, which also
//          asks for the next slab pair into the stage that has become free; two in the first, and a loading
//          warp. Finishers are the warps 15 and 19: their quarter of the multiprocessor has three consumers,
//          the others four.
//
// Barriers full[stage]: the slab pair has landed
//          empty[stage]: the finishers have read its biases, behind `ready` (first product)
//          ready[buffer]: the 15 consumers have written their sums, and need their slab pair no more
//          taken[buffer]: the finishers have read the sums
// Ordering A consumer arrives at `ready` behind __syncwarp, when all its lanes have multiplied what they
//          read; a finisher waits for `ready` before it asks for the copy or arrives at `empty`, so no copy
//          overtakes a read.
//          Routing inside the kernel: each CTA of the first product routes for itself; its CTA 0 writes
//          work tiles and weights, fence, barrier, st.release of `made`. The second product polls it by
//          ld.acquire: whoever sees 1 sees the work tiles. The last CTA of the second sets it back (an
//          atomic count).
// Resident The poll ends though the first product may still run: a kernel's successor starts only when
//          all its CTAs have started (launch_dependents of each), so CTA 0 of the first is running or
//          done. Nothing else waits. A poll that takes 9 s gives up (patience.cuh) and multiplies nothing.
//
// Bytes    weights once per work tile, in copies of 24 KB, five in flight; activations once per CTA
//          and work tile.
// Shared   about 205 KB (SplitKShared), one CTA a multiprocessor.
// Floor    bytes / bandwidth. Issue slots of a slab pair: 260 a consumer for 8 tokens, 270 for 16, and 170
//          (FC1) or 150 (FC2) of a finisher for each eight tokens, where a scheduler with four warps has
//          1,260 cycles at 4.4 TB/s.
#include "backend/cuda/kernels/common/patience.cuh"
#include "backend/cuda/kernels/sm90/gemm_split_k_parts.cuh"
#include "backend/cuda/runtime/shared_limits.h"

namespace moesaic::cuda::sm90 {
namespace {

// ---- the loading and finishing warps ----

// One thread asks for the slab pairs in order. A copy costs it some 70 cycles, however long it is. In the
// second product its warp bounds all others, so measure after any change here: two other forms of this struct
// made tiles of 16 tokens 10% slower (docs/lab/2026-11-28-finishing-warps.md).
template <bool kDown>
struct SlabPairLoader {
  SplitKShared& s;
  const SplitKParams& p;
  WorkPosition at = s.range.first;
  bool more = !s.range.done(at);
  const uint8_t* next = nullptr;
  const uint64_t policy = evict_first_policy();

  // Before the first load(), and at each work tile.
  __device__ void open() {
    if (more)
      next = p.weights + s.range.work_tiles[at.work_tile].expert * expert_bytes<kDown>(p.layout) +
             static_cast<size_t>(at.slab_pair) * kSlabPairBytes;
  }
  // The next slab pair, if there is one.
  __device__ void load(int stage) {
    if (!more) return;
    mbarrier_arrive_expect_tx(&s.full[stage], kSlabPairBytes);
    cp_async_bulk(s.slab_pair[stage], next, kSlabPairBytes, &s.full[stage], policy);
    at = s.range.place(at, at.slab_pair + 1), next += kSlabPairBytes;
    more = !s.range.done(at);
    if (at.slab_pair == 0) open();
  }
};
template <bool kDown>
__device__ void load_slab_pairs(SplitKShared& s, const SplitKParams& p) {
  SlabPairLoader<kDown> loader{s, p};
  loader.open();
  for (RingPlace<kSplitKStages> stage; loader.more; stage.next()) {
    mbarrier_wait(&s.empty[stage.index], stage.phase ^ 1);
    loader.load(stage.index);
  }
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
// Eight consumers' sums, from `first` on, of four tokens' values: vector `lane` of a tile.
__device__ __forceinline__ float4 add_eight(const SplitKShared& s, int buffer, int tile, int first) {
  const int lane = threadIdx.x & 31;
  float4 v[8];
#pragma unroll
  for (int w = 0; w < 8; ++w)
    v[w] = first + w < kConsumers ? reinterpret_cast<const float4*>(s.sums[buffer][first + w][tile])[lane]
                                  : float4{};
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
#pragma unroll
    for (int w = 0; w < 8; w += 2 * step) v[w] = add(v[w], v[w + step]);
  }
  return v[0];
}
// The sums of all consumers: row lane / 2, four tokens from lane % 2 * 4 on. They are added in two halves:
// all sixteen vectors would not fit into the registers.
__device__ __forceinline__ float4 add_consumers(const SplitKShared& s, int buffer, int tile) {
  static_assert(kConsumers <= 16);
  const float4 low = add_eight(s, buffer, tile, 0);
  return add(low, add_eight(s, buffer, tile, 8));
}

// to: this lane's first token's value of the slab pair's first row or column; left: tokens from it on.
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

// A finishing warp finishes all tiles of eight tokens of a slab pair. Where there are two such warps, each
// finishes one tile; they take turns.
template <bool kDown>
__device__ void finish(SplitKShared& s, const SplitKParams& p, int finisher) {
  using Out = std::conditional_t<kDown, float, __half>;
  constexpr bool kLoads = kFinishers<kDown> == 1;
  constexpr int kTiles = kSplitKTokens / 8 / kFinishers<kDown>;
  const int lane = threadIdx.x & 31, row = lane / 2;
  const float factor = kWeightScale * p.x.factor;
  const SlabPairRange& range = s.range;
  SlabPairLoader<kDown> loader{s, p};
  if (kLoads) loader.open();
  for (int i = 0; kLoads && lane == 0 && i < kSplitKStages; ++i) loader.load(i);
  wait_for_predecessor();
  RingPlace<kSplitKStages> stage;
  RingPlace<kSumBuffers> buffer;
  for (WorkPosition at = range.first; !range.done(at);) {
    const WorkTile work_tile = range.work_tiles[at.work_tile];
    const int end = range.end_of_work_tile(at);
#pragma unroll 1
    for (int slab_pair = at.slab_pair; slab_pair < end; ++slab_pair, stage.next(), buffer.next()) {
      const int tile = (buffer.index + finisher) % kFinishers<kDown>;  // the first of them
      mbarrier_wait(&s.ready[buffer.index], buffer.phase);
      const uint8_t* slab = s.slab_pair[stage.index] +
                            row / 8 * strides(kDown, slab_pair - p.layout.fc2_slab_pairs).slab + kThirdBias;
      const float bias = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(slab)[row % 8]);
      float4 sums[kTiles];
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        if ((tile + i) * 8 < work_tile.count) sums[i] = add_consumers(s, buffer.index, tile + i);
      __syncwarp();
      if (arrives(lane == 0)) {
        mbarrier_arrive(&s.taken[buffer.index]);
        if (!kLoads) mbarrier_arrive(&s.empty[stage.index]);
        if (kLoads && lane == 0) loader.load(stage.index);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        if ((tile + i) * 8 >= work_tile.count) break;
        const int token = (tile + i) * 8 + lane % 2 * 4;
        const auto value = [&](float sum) { return fmaf(sum, factor, bias); };
        store_rows(static_cast<Out*>(p.out) + (work_tile.first + token) * p.stride +
                       (kDown ? slab_pair * 16 + row : slab_pair * 8 + row / 2),
                   work_tile.count - token, p.stride,
                   {value(sums[i].x), value(sums[i].y), value(sums[i].z), value(sums[i].w)});
      }
    }
    at = range.place(at, end);
  }
}

__device__ RoutingScratch& routing_scratch(SplitKShared& s) {
  return reinterpret_cast<RoutingScratch&>(s.sums);
}
// Called by all threads of the first product, once routing_scratch().pairs is clear. CTA 0 writes the list
// for the second product and the combination.
__device__ void make_work_tiles(SplitKShared& s, const SplitKRoute& route) {
  RoutingScratch& making = routing_scratch(s);
  Route here = route.route;
  here.tile = kSplitKTokens, here.even = false;
  here.work_tiles = s.made.work_tiles, here.source_rows = s.made.rows, here.work_tile_count = &s.made.count;
  if (blockIdx.x > 0) here.weights = making.weights, here.permuted_rows = making.permuted_rows;
  top_k_rows<kRoutedExperts + 1>(here, making.ids);
  making.pairs.plan(here, making.ids);
  __syncthreads();
  if (blockIdx.x > 0) return;
  for (int i = threadIdx.x; i < s.made.count; i += kSplitKThreads<false>)
    route.route.work_tiles[i] = s.made.work_tiles[i];
  if (threadIdx.x == 0) *route.route.work_tile_count = s.made.count;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) st_release(route.made, 1);
}
// Called by all threads of the second product.
__device__ void read_work_tiles(SplitKShared& s, const SplitKRoute& route) {
  bool there = true;
  for (Patience patience; threadIdx.x == 0 && there && ld_acquire(route.made) == 0;)
    there = !patience.ended(route.fault);
  __syncthreads();
  const int most = min(kRoutedTiles, route.route.rows * route.route.top_k);
  for (int i = threadIdx.x; i < most; i += kSplitKThreads<true>)
    s.made.work_tiles[i] = route.route.work_tiles[i];
  if (threadIdx.x == 0) s.made.count = there ? *route.route.work_tile_count : 0;
  __syncthreads();
}
// Called by one thread of each CTA of the second product that has the list; the last one sets `made` back.
// If a CTA gave up, the owner of `made` does that.
__device__ void reset_made(const SplitKRoute& route) {
  if (atomicAdd(route.made, 1) == static_cast<int>(gridDim.x)) *route.made = 0;
}

// kDown: the work tiles are made before the predecessor ends, so that weights may come before it does.
template <bool kDown>
__global__ void __launch_bounds__(kSplitKThreads<kDown>, 1) gemm_split_k_kernel(const SplitKParams params) {
  extern __shared__ __align__(128) uint8_t split_k_shared[];
  SplitKShared& s = *reinterpret_cast<SplitKShared*>(split_k_shared);
  SplitKParams p = params;
  const bool routes = p.route.made != nullptr;
  if (threadIdx.x == 0) {
    constexpr int kFinished = kFinishers<kDown> * kWarpArrivals;
    for (int i = 0; i < kSplitKStages; ++i)
      mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], kFinished);
    for (int i = 0; i < kSumBuffers; ++i)
      mbarrier_init(&s.ready[i], kConsumers * kWarpArrivals), mbarrier_init(&s.taken[i], kFinished);
    fence_mbarrier_init();
  }
  if (!kDown && routes) routing_scratch(s).pairs.clear(p.route.route.experts);
  __syncthreads();
  if (!kDown) wait_for_predecessor();
  launch_dependents();
  if (routes) {
    if (kDown) {
      read_work_tiles(s, p.route);
    } else {
      make_work_tiles(s, p.route), p.x.rows = s.made.rows;
    }
    p.x.work_tiles = s.made.work_tiles, p.x.work_tile_count = &s.made.count;
  }
  const int warp = threadIdx.x / 32;
  if (warp == 0) s.range.find(p.x, slab_pairs_of<kDown>(p.layout));
  __syncthreads();
  if constexpr (kDown) {
    if (warp < kConsumers) return consume<kDown>(s, p, warp);
    finish<kDown>(s, p, 0);
    if (routes && threadIdx.x % 32 == 0 && s.made.count > 0) reset_made(p.route);
  } else if (warp <= kConsumers) {
    warpgroup_reg_alloc<kConsumerRegisters>();
    if (warp < kConsumers) return consume<kDown>(s, p, warp);
    finish<kDown>(s, p, 0);
  } else {
    warpgroup_reg_dealloc<kFinisherRegisters>();
    if (warp == kConsumers + 4) return finish<kDown>(s, p, 1);
    if (threadIdx.x == 32 * (kConsumers + 1)) load_slab_pairs<kDown>(s, p);
  }
}

template <bool kDown>
Status split(const SplitKParams& p, cudaStream_t stream) {
  static_assert(sizeof(SplitKShared) <= kHopperShared);
  static OncePerDevice prepared;
  const Status status = prepared.run(
      [] { return set_attributes(gemm_split_k_kernel<kDown>, {.max_shared = sizeof(SplitKShared)}); });
  if (!status.ok()) return status;
  return launch(gemm_split_k_kernel<kDown>, dim3(p.layout.sms), dim3(kSplitKThreads<kDown>),
                sizeof(SplitKShared), stream, p);
}

}  // namespace

bool split_k_routes(const Route& r) {
  return r.rows * r.top_k <= kSmallPlanPairs && r.experts <= kRoutedExperts && r.tile == kSplitKTokens &&
         max_work_tiles(r.rows, r.experts, r.top_k, r.tile) <= kRoutedTiles;
}
Status split_k_up(const uint8_t* fc1, const SlabLayout& layout, const Activations& x,
                  const SplitKRoute& route, __half* h, cudaStream_t stream) {
  return split<false>({.weights = fc1, .layout = layout, .x = x, .out = h, .stride = kHidden, .route = route},
                      stream);
}
Status split_k_down(const uint8_t* fc2, const SlabLayout& layout, const Activations& h,
                    const SplitKRoute& route, const Store& out, cudaStream_t stream) {
  return split<true>(
      {.weights = fc2, .layout = layout, .x = h, .out = out.out, .stride = out.stride, .route = route},
      stream);
}

}  // namespace moesaic::cuda::sm90
