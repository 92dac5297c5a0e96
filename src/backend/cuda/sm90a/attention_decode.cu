// Attention of single rows with short contexts, up to a span, and with windows: latency.
//
// A thread block computes one block of 128 keys of one KV head of one row: at head_dim 64 32 KB, which come
// by bulk copies and are all in flight before the first is used, but for the newest page even before the
// predecessor has ended. The thread blocks of a row and KV head are a cluster, which joins their results
// through distributed shared memory, each thread block some of the heads.
#include <algorithm>

#include "backend/cuda/sm90a/attention_decode.cuh"
#include "backend/cuda/sm90a/attention_long.h"

namespace moesaic::cuda {
namespace {

using namespace sm90a;

template <int D>
struct Shared {
  BlockPages<D> pages;
  BlockStats stats;
  BlockReady ready;
  float sinks[kAttendRows];  // of the group's heads
};

__device__ inline uint32_t cluster_size() {
  uint32_t n;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return n;
}
__device__ inline float remote(const float* mine, int rank) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(remote_addr(mine, rank)) : "memory");
  return x;
}

// Dimension d of head `i` of the group: the cluster's blocks in order. Spans that end among them, since a
// window may straddle two, join the total.
template <int D>
__device__ float join_blocks(Shared<D>& s, const Keys& keys, int i, int d, Running& total) {
  const int from = keys.first_block(), count = keys.last_block() - from + 1;
  Running block[kSpanBlocks], span = Running::nothing();
  float value[kSpanBlocks], span_value = 0, all = 0;
#pragma unroll
  for (int b = 0; b < kSpanBlocks; ++b) {
    if (b >= count) continue;
    block[b] = {remote(&s.stats.of[i].max, b), remote(&s.stats.of[i].sum, b)};
    value[b] = remote(s.pages.value(i, d), b);
  }
#pragma unroll
  for (int b = 0; b < kSpanBlocks; ++b) {
    if (b >= count) continue;
    span_value = joined(join(span, block[b]), span_value, value[b]);
    if (b < count - 1 && (from + b) % kSpanBlocks != kSpanBlocks - 1) continue;
    all = joined(join(total, span), all, span_value);
    span = Running::nothing(), span_value = 0;
  }
  return all;
}

// All heads, where there is but one block and nobody to wait for.
template <int D>
__device__ void finish_alone(Shared<D>& s, const Attention& p, const RowTile& tile) {
  constexpr int kAtOnce = kAttendThreads / D;
  const int group = p.heads / p.kv_heads, d = threadIdx.x % D;
#pragma unroll
  for (int k = 0; k < kAttendRows / kAtOnce; ++k) {
    const int i = threadIdx.x / D + k * kAtOnce;
    if (i >= group) break;
    Running total = Running::sink(s.sinks[i]), span = Running::nothing();
    const float value = joined(join(span, s.stats.of[i]), 0, *s.pages.value(i, d));
    const float all = joined(join(total, span), 0, value);
    write(p, tile.row, blockIdx.y * group + i, d, all * total.inverse());
  }
}

// Heads rank, rank + size, .. of the group.
template <int D>
__device__ void finish(Shared<D>& s, const Attention& p, const RowTile& tile, const Keys& keys, int size,
                       int rank) {
  const int group = p.heads / p.kv_heads, d = threadIdx.x % D;
  constexpr int kAtOnce = kAttendThreads / D;  // heads
  for (int i = rank + size * (threadIdx.x / D); i < group; i += size * kAtOnce) {
    Running total = Running::sink(s.sinks[i]);
    const float value = join_blocks<D>(s, keys, i, d, total);
    write(p, tile.row, blockIdx.y * group + i, d, value * total.inverse());
  }
}

template <int D>
__device__ void keep_values(BlockPages<D>& pages, const float (&acc)[D / 32][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int n = 0; n < D / 32; ++n) {
    const int d = (warp * (D / 32) + n) * 8 + 2 * c;
    *reinterpret_cast<float2*>(pages.value(g, d)) = {acc[n][0], acc[n][1]};
    *reinterpret_cast<float2*>(pages.value(g + 8, d)) = {acc[n][2], acc[n][3]};
  }
}

template <int D, bool kFp8>
__global__ void __launch_bounds__(kAttendThreads, 6) attend_short_kernel(const Attention p) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<D>*>(memory);
  const int size = static_cast<int>(cluster_size()), rank = static_cast<int>(cluster_rank());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  start_successor();
  const RowTile tile = p.tiles[blockIdx.z];
  const Keys keys(p, tile);
  const int block = keys.first_block() + rank;
  const bool busy = block <= keys.last_block();
  int64_t at = 0;
  if (busy && warp == 0) {
    if (lane == 0) s.ready.init(), mbar_init_fence();
    __syncwarp();
    at = locate<D, kFp8>(p, tile, keys, block);
    request<kFp8>(s.pages, s.ready, p, at, keys, block, Written::kBefore);
  }
  const int group = p.heads / p.kv_heads;
  if (threadIdx.x < group) s.sinks[threadIdx.x] = p.sinks[blockIdx.y * group + threadIdx.x];
  wait_for_predecessor();
  if (busy) {
    if (warp == 0) request<kFp8>(s.pages, s.ready, p, at, keys, block, Written::kNow);
    uint32_t q[D / 16][4];
    load_queries<D, kFp8>(q, p, tile.row, blockIdx.y, lane);
    __syncthreads();
    weigh_block<kFp8>(s.pages, s.ready, 0, s.stats, keys, block, q);
    float acc[D / 32][4];
    sum_values<kFp8>(acc, s.pages, s.ready, 0, keys, block);
    keep_values(s.pages, acc);
  }
  if (size == 1) {
    __syncthreads();
    finish_alone(s, p, tile);
    return;
  }
  cluster_arrive();
  cluster_wait();
  finish(s, p, tile, keys, size, rank);
  cluster_arrive();  // nobody leaves while its results are read
  cluster_wait();
}

// Few thread blocks are to have a multiprocessor each, while dense_decode's before and after them are there:
// they would otherwise share the first that has room, three together.
constexpr int kAlone = 40 * 1024, kFew = 132;

template <int D, bool kFp8>
Status run_short(const Attention& p, int blocks, cudaStream_t stream) {
  static const cudaError_t prepared =
      cudaFuncSetAttribute(attend_short_kernel<D, kFp8>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           std::max<int>(sizeof(Shared<D>), kAlone));
  if (prepared != cudaSuccess) return check(prepared, "attention");
  const bool few = blocks * p.kv_heads * p.tile_count <= kFew;
  return launch_clusters(blocks, attend_short_kernel<D, kFp8>, dim3(blocks, p.kv_heads, p.tile_count),
                         dim3(kAttendThreads), std::max<size_t>(sizeof(Shared<D>), few ? kAlone : 0), stream,
                         p);
}

}  // namespace

Status attend_decode(const Attention& p, cudaStream_t stream) {
  // Blocks that a window may touch, whatever its position.
  const int most = p.window > 0 ? (p.window + 2 * kBlockTokens - 2) / kBlockTokens : p.blocks;
  const int blocks = std::min(p.blocks, most);
  if (blocks > kSpanBlocks) return sm90a::attend_long(p, stream);
  return for_shape(p, [&](auto d, auto fp8) { return run_short<d, fp8>(p, blocks, stream); });
}

}  // namespace moesaic::cuda
