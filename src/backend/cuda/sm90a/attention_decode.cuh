// What the two kernels for single rows share: a thread block of four warps and one block of 128 keys of one
// KV head.
//
// Warp w scores page w for all heads of the group (up to 16, the rows of an MMA), then sums a quarter of the
// dimensions over all pages, so that no sum crosses warps.
#pragma once

#include "backend/cuda/attention_parts.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/sm90a/ptx.cuh"

namespace moesaic::cuda::sm90a {

constexpr int kAttendThreads = 128, kAttendWarps = kAttendThreads / 32, kAttendRows = kMostGroup;
static_assert(kAttendWarps == kBlockPages);
constexpr int kWeightStride = kPageTokens + 8;  // elements of a row of weights: no bank conflicts

// A block's pages. Once warp w has its scores, page w of K holds their weights, and behind them there is room
// for the result of the warp's dimensions.
template <int D>
struct BlockPages {
  alignas(128) __nv_bfloat16 k[kBlockPages][kPageTokens * D];
  alignas(128) __nv_bfloat16 v[kBlockPages][kPageTokens * D];

  __device__ __nv_bfloat16* weights(int page, int row) { return k[page] + row * kWeightStride; }
  __device__ float* value(int row, int d) {
    constexpr int kSlice = D / kAttendWarps;
    return reinterpret_cast<float*>(k[d / kSlice] + kAttendRows * kWeightStride) + row * kSlice + d % kSlice;
  }
};
static_assert(kAttendRows * (kWeightStride * 2 + 32 / kAttendWarps * 4) <= kPageTokens * 32 * 2);

struct BlockReady {
  uint64_t k[kBlockPages], v;

  __device__ void init() {
    for (uint64_t& page : k) mbar_init(&page, 1);
    mbar_init(&v, kBlockPages);
  }
};

struct BlockStats {
  float max[kAttendWarps][kAttendRows];     // of scores, unscaled
  float sum[kAttendWarps][kAttendRows][4];  // of weights: a lane's share
  Running of[kAttendRows];                  // the block's
};

// The keys of one row.
struct Keys {
  int first, last;

  __device__ Keys(const Attention& p, const RowTile& tile)
      : first(p.window > 0 ? max(0, tile.position - p.window + 1) : 0), last(tile.position) {}
  __device__ int first_block() const { return first / kBlockTokens; }
  __device__ int last_block() const { return last / kBlockTokens; }
  __device__ int first_span() const { return first / kSpanTokens; }
  __device__ int spans() const { return last / kSpanTokens - first_span() + 1; }
  __device__ bool has_page(int page) const {
    return page >= first / kPageTokens && page <= last / kPageTokens;
  }
};

__device__ inline void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_addr(row))
               : "memory");
}
// A page in the cache.
template <int D, bool kFp8>
inline constexpr int kPageBytes = kPageTokens* D*(kFp8 ? 1 : 2);

// Which pages request() copies: this step has written to the row's last page.
enum class Written { kBefore, kNow };

// By a whole warp, a lane a page: where a block's pages lie in the cache, in bytes.
template <int D, bool kFp8>
__device__ int64_t locate(const Attention& p, const RowTile& tile, const Keys& keys, int block) {
  const int lane = threadIdx.x % 32, page = block * kBlockPages + lane;
  if (lane >= kBlockPages || !keys.has_page(page)) return 0;
  return page_at(p, tile, page, kPageBytes<D, kFp8>);
}

// K's and V's copies of pages that lie at `at`. Pages that the row does not have count as copied.
template <bool kFp8, int D>
__device__ void request(BlockPages<D>& to, BlockReady& ready, const Attention& p, int64_t at,
                        const Keys& keys, int block, Written which) {
  const int lane = threadIdx.x % 32, page = block * kBlockPages + lane;
  if (lane >= kBlockPages) return;
  if (!keys.has_page(page)) {
    if (which == Written::kBefore) mbar_arrive(ready.k + lane), mbar_arrive(&ready.v);
    return;
  }
  if ((page == keys.last / kPageTokens) != (which == Written::kNow)) return;
  constexpr int kBytes = kPageBytes<D, kFp8>;
  const uint64_t policy = evict_first_policy();
  mbar_expect(ready.k + lane, kBytes);
  bulk_copy(to.k[lane], static_cast<const uint8_t*>(p.k) + at, kBytes, ready.k + lane, policy);
  mbar_expect(&ready.v, kBytes);
  bulk_copy(to.v[lane], static_cast<const uint8_t*>(p.v) + at, kBytes, &ready.v, policy);
}

// FP8: which dimensions stand in which slot of the contraction is free as long as both operands agree. A lane
// has D / 4 bytes of a row of up to 64 that lie together, four to an MMA, and tokens 8 c .. 8 c + 7 of a
// page, four to an MMA.
template <int D>
inline constexpr int kRowBytes = D < 64 ? D : 64;
// Word of Q (two dimensions) that stands in half `i` (0, 1) of step `step`.
template <int D, bool kFp8>
__device__ inline int query_word(int step, int i, int c) {
  if constexpr (!kFp8) return step * 8 + i * 4 + c;
  constexpr int kSteps = kRowBytes<D> / 16;
  return step / kSteps * (kRowBytes<D> / 2) + c * (kRowBytes<D> / 8) + step % kSteps * 2 + i;
}

// Rows of Q: A fragments of mma.m16n8k16, steps of 16 dimensions.
template <int D, bool kFp8>
__device__ void load_queries(uint32_t (&q)[D / 16][4], const Attention& p, int row, int kv_head, int lane) {
  const int group = p.heads / p.kv_heads, g = lane / 4, c = lane % 4;
  const auto* from =
      reinterpret_cast<const uint32_t*>(p.q + (static_cast<int64_t>(row) * p.heads + kv_head * group) * D);
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = g + i % 2 * 8;
      q[step][i] = head < group ? from[head * (D / 2) + query_word<D, kFp8>(step, i / 2, c)] : 0;
    }
  }
}

// Scores of the page's 32 keys: tile j has keys 8 j + 2 c + {0, 1} of rows g and g + 8.
template <int D>
__device__ void score_bytes(float (&s)[4], const uint32_t (&q)[D / 16][4], const uint8_t* row) {
  constexpr int kSteps = kRowBytes<D> / 16;  // and words of a lane
#pragma unroll
  for (int part = 0; part < D / kRowBytes<D>; ++part) {
    uint32_t words[kSteps];
    for (int i = 0; i < kSteps; ++i)
      words[i] = reinterpret_cast<const uint32_t*>(row + part * kPageTokens * kRowBytes<D>)[i];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) mma<true>(s, q[part * kSteps + i], widen_e4m3(words[i]));
  }
}
template <int D, bool kFp8>
__device__ void score(float (&s)[4][4], const uint32_t (&q)[D / 16][4], const __nv_bfloat16* k, int lane) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[j][i] = 0;
    if constexpr (kFp8) {
      score_bytes<D>(
          s[j], q,
          reinterpret_cast<const uint8_t*>(k) + k8_at(D, 8 * j + lane / 4, lane % 4 * (kRowBytes<D> / 4)));
    } else {
#pragma unroll
      for (int d = 0; d < D; d += 32) {
        uint32_t b[4];
        load_matrices(b, k + k_at(D, 8 * j + lane % 8, d + lane / 8 * 8));
        mma<true>(s[j], q[d / 16], b[0], b[1]);
        mma<true>(s[j], q[d / 16 + 1], b[2], b[3]);
      }
    }
  }
}

// Scores become weights relative to the block's maximum; a lane's sums of them.
__device__ inline void weigh(float (&s)[4][4], const float (&max)[2], float scale, float (&sum)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float shift = __fmul_rn(max[h], scale);
    sum[h] = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = s[i / 2][2 * h + i % 2];
      x = exp2_fast(fmaf(x, scale, -shift));
      sum[h] += x;
    }
  }
}

// Weights of a block's keys, in shared memory, and its statistics, which the thread block sees after its next
// barrier. All threads.
template <bool kFp8, int D>
__device__ void weigh_block(BlockPages<D>& pages, BlockReady& ready, uint32_t phase, BlockStats& s,
                            const Keys& keys, int block, const uint32_t (&q)[D / 16][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int page = block * kBlockPages + warp;
  const bool mine = keys.has_page(page);
  float x[4][4];
  float top[2] = {kNothing, kNothing}, sum[2] = {0, 0};
  if (mine) {
    mbar_wait(ready.k + warp, phase);
    score<D, kFp8>(x, q, pages.k[warp], lane);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int key = page * kPageTokens + i / 4 * 8 + 2 * c + i % 2;
      float& y = x[i / 4][i % 4];
      if (key < keys.first || key > keys.last) y = -INFINITY;
      top[i % 4 / 2] = fmaxf(top[i % 4 / 2], y);
    }
    top[0] = quad_max(top[0]), top[1] = quad_max(top[1]);
  }
  if (c == 0) s.max[warp][g] = top[0], s.max[warp][g + 8] = top[1];
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < kAttendWarps; ++i) top[h] = fmaxf(top[h], s.max[i][g + 8 * h]);
  }
  const float scale = score_scale(D);
  if (mine) {
    weigh(x, top, scale, sum);
#pragma unroll
    for (int i = 0; i < 8; ++i)  // keys 8 (i / 2) + 2 c + {0, 1}
      *reinterpret_cast<uint32_t*>(pages.weights(warp, g + i % 2 * 8) +
                                   (kFp8 ? c / 2 * 16 + c % 2 * 8 + i / 2 * 2 : i / 2 * 8 + 2 * c)) =
          pack_bf16(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
  }
  s.sum[warp][g][c] = sum[0], s.sum[warp][g + 8][c] = sum[1];
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float all = 0;
    for (int i = 0; i < kAttendWarps; ++i) all += s.sum[i][g + 8 * h][c];
    all = quad_sum(all);
    if (c == 0) s.of[g + 8 * h] = {__fmul_rn(top[h], scale), all};
  }
}

// Weighted values of dimensions [D / 4 * warp, D / 4 * (warp + 1)): acc[n] has 8 n + 2 c + {0, 1} of rows g
// and g + 8.
template <bool kFp8, int D>
__device__ void sum_values(float (&acc)[D / 32][4], BlockPages<D>& pages, BlockReady& ready, uint32_t phase,
                           const Keys& keys, int block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < D / 32; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
  mbar_wait(&ready.v, phase);
  for (int i = 0; i < kBlockPages; ++i) {
    if (!keys.has_page(block * kBlockPages + i)) continue;
    uint32_t a[2][4];
    const __nv_bfloat16* weights = pages.weights(i, lane % 16) + lane / 16 * 8;
    load_matrices(a[0], weights);
    load_matrices(a[1], weights + 16);
#pragma unroll
    for (int n = 0; n < D / 32; ++n) {
      uint32_t b[4];
      if constexpr (kFp8) {
        const uint2 tokens =
            *reinterpret_cast<const uint2*>(reinterpret_cast<const uint8_t*>(pages.v[i]) +
                                            v8_at(lane % 4 * 8, (warp * (D / 32) + n) * 8 + lane / 4));
        const uint2 low = widen_e4m3(tokens.x), high = widen_e4m3(tokens.y);
        b[0] = low.x, b[1] = low.y, b[2] = high.x, b[3] = high.y;
      } else {
        load_matrices(b, pages.v[i] + v_at(lane / 8 * 8, (warp * (D / 32) + n) * 8 + lane % 8));
      }
      mma<true>(acc[n], a[0], b[0], b[1]);
      mma<true>(acc[n], a[1], b[2], b[3]);
    }
  }
}

// What is left of head `head` of a span, [head_dim] values, maximum, sum, the first at the row's first span.
template <int D>
__device__ float* partial_of(const Attention& p, const RowTile& tile, const Keys& keys, int head) {
  const int64_t before =
      static_cast<int64_t>(tile.partial) * p.heads + static_cast<int64_t>(head) * keys.spans();
  return p.partial + before * (D + 2);
}

__device__ inline void write(const Attention& p, int row, int head, int d, float v) {
  const int64_t at = (static_cast<int64_t>(row) * p.heads + head) * p.head_dim + d;
  if (p.bf16) {
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(v);
  } else {
    static_cast<__half*>(p.out)[at] = __float2half_rn(v);
  }
}

}  // namespace moesaic::cuda::sm90a
