// Attention of single rows with contexts of several spans: bandwidth.
//
// A thread block computes consecutive blocks of 128 keys of one KV head of one row and leaves their results
// in memory, where a second kernel joins them: a block where the grid would not fill the device with more,
// else a span, whose blocks it joins itself and streams through a ring, so that copies are always in flight.
// At head_dim 64 a block is 32 KB and leaves 2 KB, 264 bytes a head.
#include <algorithm>

#include "backend/cuda/sm90a/attention_decode.cuh"
#include "backend/cuda/sm90a/attention_long.h"

namespace moesaic::cuda {
namespace {

using namespace sm90a;

// kBlocks: blocks of a thread block, 1 or kSpanBlocks.
template <int D, int kBlocks>
struct Shared {
  static constexpr int kStages = kBlocks == 1 ? 1 : 2;
  BlockPages<D> pages[kStages];
  BlockStats stats;
  BlockReady ready[kStages];
};

// What a thread block leaves of head `head`: [head_dim] values, maximum, sum. `entry` counts from the row's
// first span, entries_per_span a span.
template <int D>
__device__ float* partial_of(const Attention& p, const RowTile& tile, const Keys& keys, int per_span,
                             int head, int entry) {
  const int64_t before =
      static_cast<int64_t>(tile.partial) * p.heads + static_cast<int64_t>(head) * keys.spans();
  return p.partial + (before * per_span + entry) * (D + 2);
}

template <int D>
struct Values {
  float v[D / 32][4] = {};
  Running of[2] = {Running::nothing(), Running::nothing()};

  __device__ void add(const float (&block)[D / 32][4], const BlockStats& s) {
    const int g = threadIdx.x % 32 / 4;
    const Join by[2] = {join(of[0], s.of[g]), join(of[1], s.of[g + 8])};
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
      v[i / 4][i % 4] = joined(by[i % 4 / 2], v[i / 4][i % 4], block[i / 4][i % 4]);
  }
  __device__ void leave(const Attention& p, const RowTile& tile, const Keys& keys, int per_span,
                        int entry) const {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4,
              group = p.heads / p.kv_heads;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (g + 8 * h >= group) continue;
      float* to = partial_of<D>(p, tile, keys, per_span, blockIdx.y * group + g + 8 * h, entry);
#pragma unroll
      for (int n = 0; n < D / 32; ++n)
        *reinterpret_cast<float2*>(to + (warp * (D / 32) + n) * 8 + 2 * c) = {v[n][2 * h], v[n][2 * h + 1]};
      if (warp == 0 && c == 0) *reinterpret_cast<float2*>(to + D) = {of[h].max, of[h].sum};
    }
  }
};

template <int D, int kBlocks, bool kFp8>
__global__ void __launch_bounds__(kAttendThreads, kBlocks == 1 ? 6 : 3)
    attend_long_kernel(const Attention p) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<D, kBlocks>*>(memory);
  constexpr int kStages = Shared<D, kBlocks>::kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  start_successor();
  const RowTile tile = p.tiles[blockIdx.z];
  const Keys keys(p, tile);
  const int base = keys.first_span() * kSpanBlocks + blockIdx.x * kBlocks;
  const int from = max(base, keys.first_block()), to = min(base + kBlocks - 1, keys.last_block());
  const auto ask = [&](int block, Written which) {
    const int stage = (block - from) % kStages;
    if (block > to) return;
    request<kFp8>(s.pages[stage], s.ready[stage], p, locate<D, kFp8>(p, tile, keys, block), keys, block,
                  which);
  };
  if (warp == 0) {
    if (lane == 0) {
      for (BlockReady& ready : s.ready) ready.init();
      mbar_init_fence();
    }
    __syncwarp();
    for (int i = 0; i < kStages; ++i) ask(from + i, Written::kBefore);
  }
  wait_for_predecessor();
  if (from > to) return;
  if (warp == 0) {
    for (int i = 0; i < kStages; ++i) ask(from + i, Written::kNow);
  }
  uint32_t q[D / 16][4];
  load_queries<D, kFp8>(q, p, tile.row, blockIdx.y, lane);
  __syncthreads();
  Values<D> values;
  for (int block = from; block <= to; ++block) {
    const int stage = (block - from) % kStages, phase = (block - from) / kStages & 1;
    weigh_block<kFp8>(s.pages[stage], s.ready[stage], phase, s.stats, keys, block, q);
    float acc[D / 32][4];
    sum_values<kFp8>(acc, s.pages[stage], s.ready[stage], phase, keys, block);
    fence_async();  // the weights lie where the next copies go
    __syncthreads();
    if (warp == 0) ask(block + kStages, Written::kBefore), ask(block + kStages, Written::kNow);
    values.add(acc, s.stats);
  }
  values.leave(p, tile, keys, kSpanBlocks / kBlocks, blockIdx.x);
}

constexpr int kJoinWarps = 16;

// A thread block a row, head and 32 dimensions; a warp a span, joined by the first warp.
template <int D, int kBlocks>
__global__ void __launch_bounds__(kJoinWarps * 32) join_kernel(const Attention p) {
  constexpr int kEntries = kSpanBlocks / kBlocks;
  __shared__ float values[2][kJoinWarps][32];
  __shared__ Running stats[2][kJoinWarps];
  start_successor();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, d = blockIdx.y * 32 + lane;
  const RowTile tile = p.tiles[blockIdx.z];
  const Keys keys(p, tile);
  const int spans = keys.spans(), base = keys.first_span() * kSpanBlocks;
  Running total = Running::sink(p.sinks[head]);
  float all = 0;
  wait_for_predecessor();
  for (int first = 0, buffer = 0; first < spans; first += kJoinWarps, buffer ^= 1) {
    Running part[kEntries], span = Running::nothing();
    float value[kEntries], span_value = 0;
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      const int entry = (first + warp) * kEntries + i, block = base + entry * kBlocks;
      const bool there = first + warp < spans &&
                         (kBlocks > 1 || (block >= keys.first_block() && block <= keys.last_block()));
      const float* from = partial_of<D>(p, tile, keys, kEntries, head, entry);
      value[i] = there ? from[d] : 0;
      part[i] = there ? Running{from[D], from[D + 1]} : Running::nothing();
    }
#pragma unroll
    for (int i = 0; i < kEntries; ++i) span_value = joined(join(span, part[i]), span_value, value[i]);
    values[buffer][warp][lane] = span_value;
    if (lane == 0) stats[buffer][warp] = span;
    __syncthreads();
    if (warp > 0) continue;
    for (int i = 0; i < min(kJoinWarps, spans - first); ++i)
      all = joined(join(total, stats[buffer][i]), all, values[buffer][i][lane]);
  }
  if (warp == 0) write(p, tile.row, head, d, all * total.inverse());
}

template <int D, int kBlocks, bool kFp8>
Status run(const Attention& p, cudaStream_t stream) {
  static const cudaError_t prepared =
      cudaFuncSetAttribute(attend_long_kernel<D, kBlocks, kFp8>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           sizeof(Shared<D, kBlocks>));
  if (prepared != cudaSuccess) return check(prepared, "attention");
  // A window of `blocks` blocks may begin within a span.
  const int spans = (p.blocks + kSpanBlocks - 1) / kSpanBlocks;
  const Status blocks = launch(attend_long_kernel<D, kBlocks, kFp8>,
                               dim3(spans * (kSpanBlocks / kBlocks), p.kv_heads, p.tile_count),
                               dim3(kAttendThreads), sizeof(Shared<D, kBlocks>), stream, p);
  if (!blocks.ok()) return blocks;
  return launch(join_kernel<D, kBlocks>, dim3(p.heads, D / 32, p.tile_count), dim3(kJoinWarps * 32), 0,
                stream, p);
}
template <int D, bool kFp8>
Status run(const Attention& p, cudaStream_t stream) {
  return entries_per_span(p.tile_count * p.kv_heads, p.blocks) == 1 ? run<D, kSpanBlocks, kFp8>(p, stream)
                                                                    : run<D, 1, kFp8>(p, stream);
}

}  // namespace

Status sm90a::attend_long(const Attention& p, cudaStream_t stream) {
  return for_shape(p, [&](auto d, auto fp8) { return run<d, fp8>(p, stream); });
}

}  // namespace moesaic::cuda
