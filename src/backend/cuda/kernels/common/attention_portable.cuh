// Attention by mma.sync, for every device from compute capability 8.0 on: prefill and decode.
//
// Maths    that of attention_decode.cu. A row's sums run page by page in a span of kSpanPages pages. The
//          spans are joined in order, starting from the sink, which is the first running maximum. A page that
//          a row does not attend to changes nothing, so a result does not depend on batch or chunk, nor on
//          which CTA has a span.
// Shapes   a RowTile of up to 128 / group tokens: 64 MMA rows a CTA, each one (token, query head) of a KV
//          head's group: row r is token r / group, head r % group. Pages of 32 keys, BF16 or FP8.
// Cache    says where keys and values lie: attention_portable.cu's are the engine's own pages (kv_page.h),
//          paged_attention.cu's a caller's. It has
//            kHeadDim, kFp8   of what it is compiled for
//            Ring             kStages stages of K and V in shared memory: open(), wait(n), first, second
//            fetch(..)        asks for a page; all threads of the CTA call it
//            key_pairs(..), value_pairs(..)   the products' right operands in a stage
//            failed(ring)     whether something that it was asked for is not there: the rows become NaN
//
// Grid     x: tile, the last (which have the most keys) first; y: KV head; z % 2: half of the tile's tokens.
//          Where n CTAs divide the spans, one has the spans z / 2, z / 2 + n, ...
// CTA      4 warps of 16 rows, alike; a warp without rows only helps to copy: a ring of 4 pages of K and V.
//
// Barriers those of the ring. Before a stage is filled again, __syncthreads() behind its use.
// Ordering A copy into a stage is issued after that barrier, so no copy overtakes a read. Everything but
//          parameters is read after the wait for the predecessor. Where spans are divided each CTA leaves its
//          own in memory, and the one that arrives last joins all of them.
// Resident No CTA waits for another.
//
// Bytes    a KV head's pages once per 64 rows. Shared memory: 4 stages of 2 * 32 * D elements, 32 KB at D =
//          64 in BF16.
// Floor    bytes / bandwidth in decode; in prefill the products' rate by mma.sync.
#pragma once

#include <algorithm>

#include "backend/cuda/kernels/common/attention_parts.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"

namespace moesaic::cuda::attention_portable {

inline constexpr int kWarps = kGroupRows / 16, kStages = 4;

// The pages [from, to) that `count` tokens from the tile's token `at` on attend to, and which of them a CTA
// has: the spans `mine`, `mine` + `of`, ... of all.
struct Pages {
  int from, to;
  int mine, of;
  int first_key, last_key;  // which the tokens attend to
  int slots;                // room for what so many spans of a row and head leave

  __device__ Pages(const Attention& p, const SpanScratch& scratch, const RowTile& tile, int at, int count) {
    const int first = tile.position + at, last = first + count - 1;
    first_key = p.window > 0 ? max(0, first - p.window + 1) : 0, last_key = last;
    from = first_key / kPageTokens, to = last / kPageTokens + 1;
    mine = blockIdx.z / kPrefillGroups, of = gridDim.z / kPrefillGroups;
    slots = of > 1 ? static_cast<int>(scratch.floats / (scratch.rows * p.heads * (p.head_dim + 2))) : 0;
    of = spans() <= slots ? min(of, spans()) : 1;
  }
  // Only tiles without a window are divided, so `from` is 0 then.
  __device__ int spans() const { return (to + kSpanPages - 1) / kSpanPages; }
  __device__ int page(int n) const {
    return from + (n / kSpanPages * of + mine) * kSpanPages + n % kSpanPages;
  }
  __device__ bool ends_span(int page) const { return (page + 1) % kSpanPages == 0 || page + 1 == to; }
};

// Where the running maximum and sum of a head start.
__device__ inline Running start(const Attention& p, int head) {
  return p.sinks != nullptr ? Running::sink(p.sinks[head]) : Running::nothing();
}

// The scratch memory of a row and head: each span's values, then each span's maximum and sum.
template <int D>
struct LeftSpans {
  float* values;
  Running* ends;
  int64_t at;
  __device__ LeftSpans(const Attention& p, const SpanScratch& scratch, const Pages& pages, int64_t row,
                       int head)
      : values(scratch.left), at((row * p.heads + head) * pages.slots) {
    ends =
        reinterpret_cast<Running*>(values + static_cast<int64_t>(scratch.rows) * p.heads * pages.slots * D);
  }
};

// The 16 rows of a warp: row 8 h + lane / 4 of it is token (row / heads), head (row % heads).
template <int D>
struct PortableRows {
  static constexpr int kTiles = kPageTokens / 8;
  uint32_t q[D / 16][4];
  int token[2], head[2], last[2];  // token of the tile, -1: no such row; last: its position
  float sum[D / 8][4] = {};        // over the span
  Running running[2] = {Running::nothing(), Running::nothing()};
  float earlier[D / 8][4] = {};  // over the spans before it
  Running total[2];

  __device__ PortableRows(const Attention& p, const RowTile& tile, int first_token, int end_token) {
    const int heads = p.heads / p.kv_heads, lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = threadIdx.x / 32 * 16 + 8 * h + lane / 4, at = first_token + row / heads;
      head[h] = blockIdx.y * heads + row % heads;
      token[h] = at < end_token ? at : -1;
      last[h] = tile.position + at;
      total[h] = token[h] >= 0 ? start(p, head[h]) : Running::nothing();
      const auto* from = reinterpret_cast<const uint32_t*>(
          p.q + (static_cast<int64_t>(tile.row + at) * p.heads + head[h]) * D);
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          q[step][2 * i + h] = token[h] >= 0 ? from[step * 8 + i * 4 + lane % 4] : 0;
      }
    }
  }

  // Scores of a page to weights, their maximum and sum.
  __device__ void softmax(float (&scores)[kTiles][4], int page, int window, Running (&of_page)[2]) const {
    const float scale = score_scale(D);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = kNothing;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int key = page * kPageTokens + i / 2 * 8 + 2 * (lane % 4) + i % 2;
        float& x = scores[i / 2][2 * h + i % 2];
        if (key > last[h] || (window > 0 && key <= last[h] - window)) x = -INFINITY;
        top = fmaxf(top, x);
      }
      const float shift = __fmul_rn(quad_max(top), scale);
      float all = 0;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        float& x = scores[i / 2][2 * h + i % 2];
        x = exp2_fast(fmaf(x, scale, -shift));
        all += x;
      }
      of_page[h] = {shift, quad_sum(all)};
    }
  }

  template <class Cache>
  __device__ void attend(const uint8_t* k, const uint8_t* v, int page, int window) {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    float scores[kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mma<true>(scores[n], q[step], Cache::key_pairs(k, n, step, g, c));
    }
    Running of_page[2];
    softmax(scores, page, window, of_page);
    const Join by[2] = {join(running[0], of_page[0]), join(running[1], of_page[1])};
    uint32_t weights[kTiles / 2][4];
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i)
      weights[i / 4][i % 4] = pack_bf16(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      float values[4] = {};
#pragma unroll
      for (int step = 0; step < kTiles / 2; ++step)
        mma<true>(values, weights[step], Cache::value_pairs(v, n, step, g, c));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = joined(by[i / 2], sum[n][i], values[i]);
    }
  }

  // The span becomes NaN, and with it all rows of the warp.
  __device__ void fail() {
    for (Running& r : running) r = {NAN, NAN};
  }
  // The span joins those before it.
  __device__ void join_span() {
    const Join by[2] = {join(total[0], running[0]), join(total[1], running[1])};
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) earlier[n][i] = joined(by[i / 2], earlier[n][i], sum[n][i]), sum[n][i] = 0;
    }
    running[0] = running[1] = Running::nothing();
  }
  // The span stays in memory.
  __device__ void leave_span(const Attention& p, const SpanScratch& scratch, const RowTile& tile,
                             const Pages& pages, int span) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (token[h] < 0) continue;
      const LeftSpans<D> left(p, scratch, pages, tile.row + token[h], head[h]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<float2*>(left.values + (left.at + span) * D + 8 * n + 2 * (threadIdx.x % 4)) = {
            sum[n][2 * h], sum[n][2 * h + 1]};
        sum[n][2 * h] = sum[n][2 * h + 1] = 0;
      }
      if (threadIdx.x % 4 == 0) left.ends[left.at + span] = running[h];
      running[h] = Running::nothing();
    }
  }

  __device__ void write(const Attention& p, const RowTile& tile) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (token[h] < 0) continue;
      const int64_t at =
          (static_cast<int64_t>(tile.row + token[h]) * p.heads + head[h]) * D + 2 * (threadIdx.x % 4);
      const float scale = total[h].inverse();
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float lo = earlier[n][2 * h] * scale, hi = earlier[n][2 * h + 1] * scale;
        static_cast<uint32_t*>(p.out)[(at + 8 * n) / 2] = p.bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
      }
    }
  }
};

// True in the one CTA that comes after all others of its tile: their spans may be read then. All threads of
// the CTA call it.
__device__ inline bool arrives_last(const SpanScratch& scratch, int of) {
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int* const arrivals = scratch.arrivals + (blockIdx.x * gridDim.y + blockIdx.y) * kPrefillGroups +
                          blockIdx.z % kPrefillGroups;
    last = atomicAdd(arrivals, 1) == of - 1;
    if (last != 0) *arrivals = 0;  // for the next launch
    __threadfence();
  }
  __syncthreads();
  return last != 0;
}

// Joins all spans of `count` tokens, four dimensions of a row and head a thread, with the operations of
// join_span().
template <int D>
__device__ void join_spans(const Attention& p, const SpanScratch& scratch, const RowTile& tile,
                           const Pages& pages, int first, int count) {
  const int heads = p.heads / p.kv_heads, spans = pages.spans();
  for (int i = threadIdx.x; i < count * heads * (D / 4); i += kWarps * 32) {
    const int row = i / (D / 4), d = i % (D / 4) * 4, head = blockIdx.y * heads + row % heads;
    const int64_t to = tile.row + first + row / heads;
    const LeftSpans<D> left(p, scratch, pages, to, head);
    Running total = start(p, head);
    float all[4] = {};
#pragma unroll 4
    for (int span = 0; span < spans; ++span) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(left.values + (left.at + span) * D + d));
      const float2 end = __ldcg(reinterpret_cast<const float2*>(left.ends + left.at + span));
      const Join by = join(total, {end.x, end.y});
      all[0] = joined(by, all[0], v.x), all[1] = joined(by, all[1], v.y);
      all[2] = joined(by, all[2], v.z), all[3] = joined(by, all[3], v.w);
    }
    const float scale = total.inverse();
    const auto pair = [&](float lo, float hi) {
      return p.bf16 ? pack_bf16(lo * scale, hi * scale) : pack_f16(lo * scale, hi * scale);
    };
    static_cast<uint2*>(p.out)[((to * p.heads + head) * D + d) / 4] = {pair(all[0], all[1]),
                                                                       pair(all[2], all[3])};
  }
}

template <class Cache>
__global__ void __launch_bounds__(kWarps * 32)
    attention_portable_kernel(const Attention p, const SpanScratch scratch, const Cache cache) {
  extern __shared__ __align__(128) uint8_t portable_memory[];
  auto& ring = *reinterpret_cast<typename Cache::Ring*>(portable_memory);
  wait_for_predecessor();
  launch_dependents();
  const RowTile tile = p.tiles[gridDim.x - 1 - blockIdx.x];  // those with the most keys first
  const int heads = p.heads / p.kv_heads, tokens = kGroupRows / heads,
            first = blockIdx.z % kPrefillGroups * tokens;
  const int count = min(tokens, tile.count - first);
  if (count <= 0) return;
  const Pages pages(p, scratch, tile, first, count);
  if (pages.mine >= pages.of) return;
  ring.open();
  for (int i = 0; i < kStages; ++i) cache.fetch(ring, p, tile, pages, i);
  __syncthreads();
  PortableRows<Cache::kHeadDim> rows(p, tile, first, first + count);
  const bool has_rows = static_cast<int>(threadIdx.x / 32) * 16 < count * heads;
  int page = pages.page(0);
  for (int n = 0; page < pages.to; page = pages.page(++n)) {
    const int stage = n % kStages;
    ring.wait(n);
    if (has_rows) {
      rows.template attend<Cache>(ring.first[stage], ring.second[stage], page, p.window);
      if (pages.ends_span(page)) {
        if (Cache::failed(ring)) rows.fail();
        if (pages.of == 1) {
          rows.join_span();
        } else {
          rows.leave_span(p, scratch, tile, pages, page / kSpanPages);
        }
      }
    }
    __syncthreads();
    cache.fetch(ring, p, tile, pages, n + kStages);
  }
  if (pages.of == 1) {
    rows.write(p, tile);
  } else if (arrives_last(scratch, pages.of)) {
    join_spans<Cache::kHeadDim>(p, scratch, tile, pages, first, count);
  }
}

// CTAs that divide the spans of a tile. Some 512 keep any device busy.
inline int divisions(const Attention& p, const SpanScratch& scratch) {
  constexpr int kWanted = 512, kMost = 64;
  const int tiles = p.tile_count * p.kv_heads;
  if (scratch.left == nullptr || p.window > 0 || tiles * kPrefillGroups > kMostSpanGroups) return 1;
  return std::clamp(kWanted / tiles, 1, kMost);
}

template <class Cache>
Status run(const Attention& p, const SpanScratch& scratch, const Cache& cache, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(typename Cache::Ring);
  static_assert(kShared <= portable_shared_bytes(Cache::kHeadDim, Cache::kFp8));
  static OncePerDevice prepared;
  const Status status =
      prepared.run([] { return set_attributes(attention_portable_kernel<Cache>, {.max_shared = kShared}); });
  if (!status.ok()) return status;
  return launch(attention_portable_kernel<Cache>,
                dim3(p.tile_count, p.kv_heads, kPrefillGroups * divisions(p, scratch)), dim3(kWarps * 32),
                kShared, stream, p, scratch, cache);
}

}  // namespace moesaic::cuda::attention_portable
