// Attention of many single rows with contexts of several spans: bandwidth.
//
// A thread block computes a span of one KV head of one row, whose blocks of 128 keys it streams through a
// ring, so that copies are always in flight, and leaves the result in memory, where a second kernel joins the
// spans. At head_dim 64 a block is 32 KB, and a span leaves 264 bytes a head.
#include <algorithm>

#include "backend/cuda/sm90a/attention_decode.cuh"
#include "backend/cuda/sm90a/attention_long.h"

namespace moesaic::cuda {
namespace {

using namespace sm90a;

template <int D>
struct Shared {
  static constexpr int kStages = 2;
  BlockPages<D> pages[kStages];
  BlockStats stats;
  BlockReady ready[kStages];
};

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
  __device__ void leave(const Attention& p, const RowTile& tile, const Keys& keys, int span) const {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4,
              group = p.heads / p.kv_heads;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (g + 8 * h >= group) continue;
      float* to = partial_of<D>(p, tile, keys, blockIdx.y * group + g + 8 * h) + span * (D + 2);
#pragma unroll
      for (int n = 0; n < D / 32; ++n)
        *reinterpret_cast<float2*>(to + (warp * (D / 32) + n) * 8 + 2 * c) = {v[n][2 * h], v[n][2 * h + 1]};
      if (warp == 0 && c == 0) *reinterpret_cast<float2*>(to + D) = {of[h].max, of[h].sum};
    }
  }
};

template <int D, bool kFp8>
__global__ void __launch_bounds__(kAttendThreads, 3) attend_long_kernel(const Attention p) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<D>*>(memory);
  constexpr int kStages = Shared<D>::kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  start_successor();
  const RowTile tile = p.tiles[blockIdx.z];
  const Keys keys(p, tile);
  const int base = (keys.first_span() + blockIdx.x) * kSpanBlocks;
  const int from = max(base, keys.first_block()), to = min(base + kSpanBlocks - 1, keys.last_block());
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
  values.leave(p, tile, keys, blockIdx.x);
}

constexpr int kJoinWarps = 16;

// A thread block a row, head and 32 dimensions; a warp a span, joined by the first warp.
template <int D>
__global__ void __launch_bounds__(kJoinWarps * 32) join_kernel(const Attention p) {
  __shared__ float values[2][kJoinWarps][32];
  __shared__ Running stats[2][kJoinWarps];
  start_successor();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, d = blockIdx.y * 32 + lane;
  const RowTile tile = p.tiles[blockIdx.z];
  const Keys keys(p, tile);
  const int spans = keys.spans();
  Running total = Running::sink(p.sinks[head]);
  float all = 0;
  wait_for_predecessor();
  for (int first = 0, buffer = 0; first < spans; first += kJoinWarps, buffer ^= 1) {
    if (first + warp < spans) {
      const float* from = partial_of<D>(p, tile, keys, head) + (first + warp) * (D + 2);
      values[buffer][warp][lane] = from[d];
      if (lane == 0) stats[buffer][warp] = {from[D], from[D + 1]};
    }
    __syncthreads();
    if (warp > 0) continue;
    for (int i = 0; i < min(kJoinWarps, spans - first); ++i)
      all = joined(join(total, stats[buffer][i]), all, values[buffer][i][lane]);
  }
  if (warp == 0) write(p, tile.row, head, d, all * total.inverse());
}

template <int D, bool kFp8>
Status run(const Attention& p, cudaStream_t stream) {
  static const cudaError_t prepared = cudaFuncSetAttribute(
      attend_long_kernel<D, kFp8>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<D>));
  if (prepared != cudaSuccess) return check(prepared, "attention");
  const Status spans = launch(attend_long_kernel<D, kFp8>, dim3(spans_of(p), p.kv_heads, p.tile_count),
                              dim3(kAttendThreads), sizeof(Shared<D>), stream, p);
  if (!spans.ok()) return spans;
  return launch(join_kernel<D>, dim3(p.heads, D / 32, p.tile_count), dim3(kJoinWarps * 32), 0, stream, p);
}

}  // namespace

Status sm90a::attend_long(const Attention& p, cudaStream_t stream) {
  return for_shape(p, [&](auto d, auto fp8) { return run<d, fp8>(p, stream); });
}

}  // namespace moesaic::cuda
