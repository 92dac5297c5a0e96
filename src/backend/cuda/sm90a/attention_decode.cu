// Attention of single rows with windows, contexts of up to a span, or few blocks in all: latency.
//
// A thread block computes one block of 128 keys of one KV head of one row: at head_dim 64 32 KB, which come
// by bulk copies and are all in flight before the first is used, but for the newest page even before the
// predecessor has ended. The thread blocks of a row and KV head are a cluster, each of which finishes some of
// the heads: the others send it their results. Where there are several spans, each is a cluster, and the last
// to leave its result in memory joins them all.
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
  uint64_t arrived;          // the inbox is full
  bool last[kAttendThreads / D];
};

// What the cluster's thread blocks send to the one that finishes head i of the group, i % size: [blocks,
// heads / size][D values, maximum, sum], behind Shared.
template <int D>
struct Inbox {
  static constexpr int kEntry = D + 2;
  float* at;
  int heads;  // of one thread block, rounded up

  __device__ Inbox(Shared<D>& s, int group, int size)
      : at(reinterpret_cast<float*>(&s + 1)), heads((group + size - 1) / size) {}
  __device__ float* entry(int block, int head) const { return at + (block * heads + head) * kEntry; }
};
template <int D>
constexpr size_t inbox_bytes(int entries) {
  return sizeof(float) * Inbox<D>::kEntry * entries;
}

__device__ inline uint32_t cluster_size() {
  uint32_t n;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return n;
}

// Dimension d of the thread block's head `head`: `count` blocks from `from` on, in order. end(span, value):
// where a span ends, of which a window may straddle two, and at the end.
template <int D, class End>
__device__ void join_blocks(const Inbox<D>& inbox, int from, int count, int head, int d, const End& end) {
  Running span = Running::nothing();
  float value = 0;
#pragma unroll
  for (int b = 0; b < kSpanBlocks; ++b) {
    if (b >= count) continue;
    const float* entry = inbox.entry(b, head);
    value = joined(join(span, {entry[D], entry[D + 1]}), value, entry[d]);
    if (b < count - 1 && (from + b) % kSpanBlocks != kSpanBlocks - 1) continue;
    end(span, value);
    span = Running::nothing(), value = 0;
  }
}

// The same of the row's spans, from memory.
template <int D>
__device__ float join_spans(const float* partial, int count, int d, Running& total) {
  constexpr int kAtOnce = 8;
  float all = 0;
  for (int first = 0; first < count; first += kAtOnce) {
    float value[kAtOnce];
    Running span[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = first + i < count;
      const float* at = partial + (first + i) * (D + 2);
      value[i] = there ? __ldcg(at + d) : 0.0f;
      span[i] = there ? Running{__ldcg(at + D), __ldcg(at + D + 1)} : Running::nothing();
    }
    // Those that are not there change nothing.
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) all = joined(join(total, span[i]), all, value[i]);
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

// Heads rank, rank + size, .. of the group, of whose keys the cluster has all.
template <int D>
__device__ void finish(Shared<D>& s, const Inbox<D>& inbox, const Attention& p, const RowTile& tile, int from,
                       int count, int size, int rank) {
  const int group = p.heads / p.kv_heads, d = threadIdx.x % D;
  constexpr int kAtOnce = kAttendThreads / D;  // heads
  for (int head = threadIdx.x / D; rank + size * head < group; head += kAtOnce) {
    const int i = rank + size * head;
    Running total = Running::sink(s.sinks[i]);
    float all = 0;
    join_blocks<D>(inbox, from, count, head, d,
                   [&](const Running& span, float value) { all = joined(join(total, span), all, value); });
    write(p, tile.row, blockIdx.y * group + i, d, all * total.inverse());
  }
}

// The same where the cluster has one span of several.
template <int D>
__device__ void finish_span(Shared<D>& s, const Inbox<D>& inbox, const Attention& p, const RowTile& tile,
                            const Keys& keys, int from, int count, int size, int rank) {
  const int group = p.heads / p.kv_heads, d = threadIdx.x % D, spans = keys.spans();
  constexpr int kAtOnce = kAttendThreads / D;
  for (int first = 0; rank + size * first < group; first += kAtOnce) {
    const int mine = threadIdx.x / D, i = rank + size * (first + mine), head = blockIdx.y * group + i;
    float* partial = partial_of<D>(p, tile, keys, head);
    if (i < group) {
      join_blocks<D>(inbox, from, count, first + mine, d, [&](const Running& span, float value) {
        float* to = partial + (from / kSpanBlocks - keys.first_span()) * (D + 2);
        to[d] = value;
        if (d == 0) to[D] = span.max, to[D + 1] = span.sum;
      });
    }
    __syncthreads();
    if (i < group && d == 0) {
      int* arrivals = p.arrivals + blockIdx.z * p.heads + head;
      __threadfence();
      s.last[mine] = atomicAdd(arrivals, 1) == spans - 1;
      if (s.last[mine]) *arrivals = 0;
      __threadfence();
    }
    __syncthreads();
    if (i >= group || !s.last[mine]) continue;
    Running total = Running::sink(s.sinks[i]);
    const float all = join_spans<D>(partial, spans, d, total);
    write(p, tile.row, head, d, all * total.inverse());
  }
}

// The block's results to who finishes them.
template <int D>
__device__ void send(Shared<D>& s, const Inbox<D>& inbox, const float (&acc)[D / 32][4], int group, int size,
                     int block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const auto put = [&](int i, int at, float a, float b) {
    const int owner = i % size;
    remote_store(remote_addr(inbox.entry(block, i / size) + at, owner), make_float2(a, b),
                 remote_addr(&s.arrived, owner));
  };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (g + 8 * h >= group) continue;
#pragma unroll
    for (int n = 0; n < D / 32; ++n)
      put(g + 8 * h, (warp * (D / 32) + n) * 8 + 2 * c, acc[n][2 * h], acc[n][2 * h + 1]);
    if (warp == 0 && c == 0) put(g + 8 * h, D, s.stats.of[g + 8 * h].max, s.stats.of[g + 8 * h].sum);
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
__global__ void __launch_bounds__(kAttendThreads, 6) attend_blocks_kernel(const Attention p) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<D>*>(memory);
  const int size = static_cast<int>(cluster_size()), rank = static_cast<int>(cluster_rank());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  start_successor();
  const RowTile tile = p.tiles[blockIdx.z];
  const Keys keys(p, tile);
  const bool all = static_cast<int>(gridDim.x) == size;  // of the row's blocks are in the cluster
  const int base = all ? keys.first_block() : keys.first_span() * kSpanBlocks + blockIdx.x - rank;
  const int from = max(base, keys.first_block()), count = min(base + size - 1, keys.last_block()) - from + 1;
  const int block = base + rank;
  const bool busy = block >= from && block < from + count;
  const int group = p.heads / p.kv_heads;
  const Inbox<D> inbox(s, group, size);
  if (size > 1) {
    if (threadIdx.x == 0) {
      const int heads = (group - rank + size - 1) / size;
      mbar_init(&s.arrived, 1), mbar_init_fence();
      mbar_expect(&s.arrived, max(count, 0) * heads * Inbox<D>::kEntry * static_cast<int>(sizeof(float)));
    }
    __syncwarp();
    cluster_arrive_relaxed();
  }
  int64_t at = 0;
  if (busy && warp == 0) {
    if (lane == 0) s.ready.init(), mbar_init_fence();
    __syncwarp();
    at = locate<D, kFp8>(p, tile, keys, block);
    request<kFp8>(s.pages, s.ready, p, at, keys, block, Written::kBefore);
  }
  if (threadIdx.x < group) s.sinks[threadIdx.x] = p.sinks[blockIdx.y * group + threadIdx.x];
  if (size > 1) __syncwarp(), cluster_wait();
  wait_for_predecessor();
  if (busy) {
    if (warp == 0) request<kFp8>(s.pages, s.ready, p, at, keys, block, Written::kNow);
    uint32_t q[D / 16][4];
    load_queries<D, kFp8>(q, p, tile.row, blockIdx.y, lane);
    __syncthreads();
    weigh_block<kFp8>(s.pages, s.ready, 0, s.stats, keys, block, q);
    float acc[D / 32][4];
    sum_values<kFp8>(acc, s.pages, s.ready, 0, keys, block);
    if (size == 1) {
      keep_values(s.pages, acc);
      __syncthreads();
      finish_alone(s, p, tile);
      return;
    }
    send(s, inbox, acc, group, size, block - from);
  } else {
    __syncthreads();  // the sinks are there
  }
  if (rank >= group || count <= 0) return;
  mbar_wait(&s.arrived, 0);
  if (all) {
    finish(s, inbox, p, tile, from, count, size, rank);
  } else {
    finish_span(s, inbox, p, tile, keys, from, count, size, rank);
  }
}

// Few thread blocks are to have a multiprocessor each, while dense_decode's before and after them are there:
// they would otherwise share the first that has room, three together.
constexpr int kAlone = 40 * 1024, kFew = 132;

// spans: 1, or each has a cluster of kSpanBlocks.
template <int D, bool kFp8>
Status run_blocks(const Attention& p, int blocks, int spans, cudaStream_t stream) {
  const int heads = p.heads / p.kv_heads;
  const size_t inbox = inbox_bytes<D>(blocks > 1 ? blocks * ((heads + blocks - 1) / blocks) : 0);
  static const cudaError_t prepared =
      cudaFuncSetAttribute(attend_blocks_kernel<D, kFp8>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(std::max<size_t>(
                               sizeof(Shared<D>) + inbox_bytes<D>(kAttendRows + kSpanBlocks), kAlone)));
  if (prepared != cudaSuccess) return check(prepared, "attention");
  const bool few = blocks * spans * p.kv_heads * p.tile_count <= kFew;
  return launch_clusters(blocks, attend_blocks_kernel<D, kFp8>,
                         dim3(blocks * spans, p.kv_heads, p.tile_count), dim3(kAttendThreads),
                         std::max<size_t>(sizeof(Shared<D>) + inbox, few ? kAlone : 0), stream, p);
}

}  // namespace

Status attend_decode(const Attention& p, cudaStream_t stream) {
  // Blocks that a window may touch, whatever its position.
  const int most = p.window > 0 ? (p.window + 2 * kBlockTokens - 2) / kBlockTokens : p.blocks;
  const int blocks = std::min(p.blocks, most);
  const bool several = blocks > kSpanBlocks;
  if (several && p.blocks * p.kv_heads * p.tile_count > kFewBlocks) return sm90a::attend_long(p, stream);
  return for_shape(p, [&](auto d, auto fp8) {
    return several ? run_blocks<d, fp8>(p, kSpanBlocks, sm90a::spans_of(p), stream)
                   : run_blocks<d, fp8>(p, blocks, 1, stream);
  });
}

}  // namespace moesaic::cuda
