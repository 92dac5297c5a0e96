// Attention by mma.sync, for every device from compute capability 9.0 on: prefill and decode.
//
// Maths    that of attention_decode.cu. A row's sums run page by page, starting from the sink, which is the
//          first running maximum. A page that a row does not attend to changes nothing, so a result does not
//          depend on batch or chunk.
// Shapes   a RowTile of up to 128 / group tokens: 64 MMA rows a CTA, each one (token, query head) of a KV
//          head's group: row r is token r / group, head r % group. Pages of 32 keys (kv_page.h), BF16 or
//          FP8.
//
// Grid     x: tile, the last (which have the most keys) first; y: KV head; z: half of the tile's tokens
// CTA      4 warps of 16 rows, alike. Thread 0 also starts the copies: a ring of 4 pages of K and V.
//
// Barriers full[stage]: both bulk copies of a page have landed. Before a stage is filled again,
//          __syncthreads() behind its use.
// Ordering A copy into a stage is issued after that barrier, so no copy overtakes a read. Everything but
//          parameters is read after the wait for the predecessor.
// Resident No CTA waits for another.
//
// Bytes    a KV head's pages once per 64 rows. Shared memory: 4 stages of 2 * 32 * D elements, 32 KB at D =
//          64 in BF16.
// Floor    bytes / bandwidth in decode; in prefill the products' rate by mma.sync.
#include "backend/cuda/kernels/common/attention_parts.cuh"
#include "backend/cuda/kernels/ptx/bulk_copy.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = kGroupRows / 16, kStages = 4;

template <int D, bool kFp8>
struct PortableShared {
  static constexpr int kBytes = kPageTokens * D * (kFp8 ? 1 : 2);
  alignas(128) uint8_t k[kStages][kBytes];
  alignas(128) uint8_t v[kStages][kBytes];
  uint64_t full[kStages];
};

// Pages [from, to) that `count` tokens from the tile's token `at` on attend to.
struct Pages {
  int from, to;
  __device__ Pages(const Attention& p, const RowTile& tile, int at, int count) {
    const int first = tile.position + at, last = first + count - 1;
    from = p.window > 0 ? max(0, first - p.window + 1) / kPageTokens : 0;
    to = last / kPageTokens + 1;
  }
};

template <int D, bool kFp8>
__device__ void fetch(PortableShared<D, kFp8>& s, const Attention& p, const RowTile& tile, const Pages& pages,
                      int page) {
  using S = PortableShared<D, kFp8>;
  if (page >= pages.to || threadIdx.x != 0) return;
  const int stage = (page - pages.from) % kStages;
  const int64_t at = page_at(p, tile, page, blockIdx.y, S::kBytes);
  portable::mbarrier_arrive_expect_tx(s.full + stage, 2 * S::kBytes);
  portable::cp_async_bulk(s.k[stage], static_cast<const uint8_t*>(p.k) + at, S::kBytes, s.full + stage);
  portable::cp_async_bulk(s.v[stage], static_cast<const uint8_t*>(p.v) + at, S::kBytes, s.full + stage);
}

// Two pairs of neighbours, at elements `at0` and `at1` of a page, as BF16.
template <bool kFp8>
__device__ inline uint2 pairs(const uint8_t* page, int at0, int at1) {
  if constexpr (kFp8) {
    const uint32_t lo = *reinterpret_cast<const uint16_t*>(page + at0);
    return widen_e4m3(lo | static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(page + at1)) << 16);
  } else {
    return {*reinterpret_cast<const uint32_t*>(page + 2 * at0),
            *reinterpret_cast<const uint32_t*>(page + 2 * at1)};
  }
}
// The right operands: keys 8 n + g at dimensions 16 step + ..., dimension 8 n + g at tokens 16 step + ...
template <int D, bool kFp8>
__device__ inline uint2 key_pairs(const uint8_t* page, int n, int step, int g, int c) {
  const int key = 8 * n + g, d = 16 * step + 2 * c;
  return kFp8 ? pairs<kFp8>(page, k8_at(D, key, d), k8_at(D, key, d + 8))
              : pairs<kFp8>(page, k_at(D, key, d), k_at(D, key, d + 8));
}
template <bool kFp8>
__device__ inline uint2 value_pairs(const uint8_t* page, int n, int step, int g, int c) {
  const int d = 8 * n + g, slot = 16 * step + 2 * c;
  return kFp8 ? pairs<kFp8>(page, v8_at(slot, d), v8_at(slot + 8, d))
              : pairs<kFp8>(page, v_at(slot, d), v_at(slot + 8, d));
}

// The 16 rows of a warp: row 8 h + lane / 4 of it is token (row / heads), head (row % heads).
template <int D>
struct PortableRows {
  static constexpr int kTiles = kPageTokens / 8;
  uint32_t q[D / 16][4];
  int token[2], head[2], last[2];  // token of the tile, -1: no such row; last: its position
  float sum[D / 8][4] = {};
  Running running[2];

  __device__ PortableRows(const Attention& p, const RowTile& tile, int first_token, int end_token) {
    const int heads = p.heads / p.kv_heads, lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = threadIdx.x / 32 * 16 + 8 * h + lane / 4, at = first_token + row / heads;
      head[h] = blockIdx.y * heads + row % heads;
      token[h] = at < end_token ? at : -1;
      last[h] = tile.position + at;
      running[h] = token[h] >= 0 ? Running::sink(p.sinks[head[h]]) : Running::nothing();
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

  template <bool kFp8>
  __device__ void attend(const uint8_t* k, const uint8_t* v, int page, int window) {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    float scores[kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mma<true>(scores[n], q[step], key_pairs<D, kFp8>(k, n, step, g, c));
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
        mma<true>(values, weights[step], value_pairs<kFp8>(v, n, step, g, c));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = joined(by[i / 2], sum[n][i], values[i]);
    }
  }

  __device__ void write(const Attention& p, const RowTile& tile) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (token[h] < 0) continue;
      const int64_t at =
          (static_cast<int64_t>(tile.row + token[h]) * p.heads + head[h]) * D + 2 * (threadIdx.x % 4);
      const float scale = running[h].inverse();
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float lo = sum[n][2 * h] * scale, hi = sum[n][2 * h + 1] * scale;
        static_cast<uint32_t*>(p.out)[(at + 8 * n) / 2] = p.bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
      }
    }
  }
};

template <int D, bool kFp8>
__global__ void __launch_bounds__(kWarps * 32) attention_portable_kernel(const Attention p) {
  extern __shared__ __align__(128) uint8_t portable_memory[];
  auto& s = *reinterpret_cast<PortableShared<D, kFp8>*>(portable_memory);
  wait_for_predecessor();
  launch_dependents();
  const RowTile tile = p.tiles[gridDim.x - 1 - blockIdx.x];  // those with the most keys first
  const int tokens = kGroupRows / (p.heads / p.kv_heads), first = blockIdx.z * tokens;
  const int count = min(tokens, tile.count - first);
  if (count <= 0) return;
  const Pages pages(p, tile, first, count);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) portable::mbarrier_init(s.full + i, 1);
    portable::fence_mbarrier_init();
  }
  for (int i = 0; i < kStages; ++i) fetch(s, p, tile, pages, pages.from + i);
  __syncthreads();
  PortableRows<D> rows(p, tile, first, first + count);
  for (int page = pages.from; page < pages.to; ++page) {
    const int n = page - pages.from, stage = n % kStages;
    portable::mbarrier_wait(s.full + stage, n / kStages % 2);
    rows.template attend<kFp8>(s.k[stage], s.v[stage], page, p.window);
    __syncthreads();
    fetch(s, p, tile, pages, page + kStages);
  }
  rows.write(p, tile);
}

template <int D, bool kFp8>
Status run(const Attention& p, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(PortableShared<D, kFp8>);
  static OncePerDevice prepared;
  const Status status = prepared.run(
      [] { return set_attributes(attention_portable_kernel<D, kFp8>, {.max_shared = kShared}); });
  if (!status.ok()) return status;
  return launch(attention_portable_kernel<D, kFp8>, dim3(p.tile_count, p.kv_heads, kPrefillGroups),
                dim3(kWarps * 32), kShared, stream, p);
}

}  // namespace

Status attend_portable(const Attention& p, cudaStream_t stream) {
  return for_shape(p, [&](auto d, auto fp8) { return run<d, fp8>(p, stream); });
}

}  // namespace moesaic::cuda
