#include <cuda_fp16.h>

#include "backend/cuda/attention.h"
#include "backend/cuda/kernels.cuh"

namespace moesaic::cuda {
namespace {

constexpr float kLog2E = 1.44269504088896341f, kNothing = -1.0e30f;
constexpr int kDecodeWarps = 4, kPrefillWarps = 4;
static_assert(kSplitPages % kDecodeWarps == 0);

__device__ inline void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                           uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline uint32_t pack(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}
__device__ inline void write(const Attention& p, int64_t at, float v) {
  if (p.bf16) {
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(v);
  } else {
    static_cast<__half*>(p.out)[at] = __float2half_rn(v);
  }
}

// kM MMA tiles of 16 rows: row 16 m + 8 h + g is token (row / group) and head (row % group) of the tile.
template <int D, int kM>
struct Rows {
  uint4 q[kM][2][D / 32];  // dimensions 8 c .. 8 c + 7 of each 32
  int position[kM][2];     // -1: no such row
  float acc[kM][D / 8][4] = {};
  float max[kM][2], sum[kM][2];  // in units of log 2; sum is this lane's share

  __device__ static int row(int m, int h, int g) { return 16 * m + 8 * h + g; }

  __device__ void load(const Attention& p, const RowTile& tile, int kv_head, int g, int c) {
    const int group = p.heads / p.kv_heads;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = row(m, h, g) / group, head = kv_head * group + row(m, h, g) % group;
        position[m][h] = token < tile.count ? p.positions[tile.row + token] : -1;
        max[m][h] = kNothing, sum[m][h] = 0;
        const __nv_bfloat16* from =
            p.q + (static_cast<int64_t>(tile.row + token) * p.heads + head) * D + 8 * c;
#pragma unroll
        for (int b = 0; b < D / 32; ++b)
          q[m][h][b] =
              token < tile.count ? *reinterpret_cast<const uint4*>(from + 32 * b) : make_uint4(0, 0, 0, 0);
      }
    }
  }

  // Scores of 8 keys of each tile jt: lane c gets keys 8 c + 2 jt + {0, 1}.
  __device__ void scores(const __nv_bfloat16* k, float (&s)[kM][4][4], int g, int c) const {
#pragma unroll
    for (int jt = 0; jt < 4; ++jt) {
      const __nv_bfloat16* key = k + (8 * (g / 2) + 2 * jt + g % 2) * D + 8 * c;
#pragma unroll
      for (int b = 0; b < D / 32; ++b) {
        const uint4 w = *reinterpret_cast<const uint4*>(key + 32 * b);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const uint4 lo = q[m][0][b], hi = q[m][1][b];
          mma(s[m][jt], lo.x, hi.x, lo.y, hi.y, w.x, w.y);
          mma(s[m][jt], lo.z, hi.z, lo.w, hi.w, w.z, w.w);
        }
      }
    }
  }

  // Scores become weights; max and sum follow.
  __device__ void softmax(float (&s)[kM][4][4], float scale, int first_key, int window) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = max[m][h];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& x = s[m][i / 2][2 * h + i % 2];
          const int key = first_key + i, last = position[m][h];
          const bool seen = key <= last && (window == 0 || key > last - window);
          x = seen ? x * scale : -INFINITY;
          top = fmaxf(top, x);
        }
        top = quad_max(top);
        const float shrink = exp2f(max[m][h] - top);
        max[m][h] = top;
        sum[m][h] *= shrink;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) acc[m][n][2 * h] *= shrink, acc[m][n][2 * h + 1] *= shrink;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& x = s[m][i / 2][2 * h + i % 2];
          x = exp2f(x - top);
          sum[m][h] += x;
        }
      }
    }
  }

  __device__ void values(const __nv_bfloat16* v, const float (&s)[kM][4][4], int g, int c) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const uint4 w = *reinterpret_cast<const uint4*>(v + (8 * n + g) * kPageTokens + 8 * c);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(acc[m][n], pack(s[m][0][0], s[m][0][1]), pack(s[m][0][2], s[m][0][3]),
            pack(s[m][1][0], s[m][1][1]), pack(s[m][1][2], s[m][1][3]), w.x, w.y);
        mma(acc[m][n], pack(s[m][2][0], s[m][2][1]), pack(s[m][2][2], s[m][2][3]),
            pack(s[m][3][0], s[m][3][1]), pack(s[m][3][2], s[m][3][3]), w.z, w.w);
      }
    }
  }

  __device__ void page(const Attention& p, const int32_t* table, int index, int kv_head, int g, int c) {
    const int64_t at = (static_cast<int64_t>(table[index]) * p.kv_heads + kv_head) * kPageTokens * D;
    float s[kM][4][4] = {};
    scores(p.k + at, s, g, c);
    softmax(s, rsqrtf(static_cast<float>(D)) * kLog2E, index * kPageTokens + 8 * c, p.window);
    values(p.v + at, s, g, c);
  }
};

// A warp a tile of rows: all pages that some row attends to.
template <int D, int kM>
__global__ void __launch_bounds__(kPrefillWarps * 32) prefill_kernel(const Attention p) {
  wait_for_predecessor();
  start_successor();
  const int warp = blockIdx.x * kPrefillWarps + threadIdx.x / 32, kv_head = blockIdx.y;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, group = p.heads / p.kv_heads;
  if (warp >= p.tile_count) return;
  const RowTile tile = p.tiles[warp];
  Rows<D, kM> rows;
  rows.load(p, tile, kv_head, g, c);
  const int first = p.window > 0 ? max(0, p.positions[tile.row] - p.window + 1) : 0;
  const int last = p.positions[tile.row + tile.count - 1];
  const int32_t* table = p.pages + p.page_start[tile.sequence];
  for (int i = first / kPageTokens; i <= last / kPageTokens; ++i) rows.page(p, table, i, kv_head, g, c);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = rows.row(m, h, g), token = row / group, head = kv_head * group + row % group;
      const float sink = p.sinks[head] * kLog2E, top = fmaxf(rows.max[m][h], sink);
      const float shrink = exp2f(rows.max[m][h] - top);
      const float scale = shrink / (quad_sum(rows.sum[m][h]) * shrink + exp2f(sink - top));
      if (token >= tile.count) continue;
      const int64_t at = (static_cast<int64_t>(tile.row + token) * p.heads + head) * D + 2 * c;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        write(p, at + 8 * n, rows.acc[m][n][2 * h] * scale);
        write(p, at + 8 * n + 1, rows.acc[m][n][2 * h + 1] * scale);
      }
    }
  }
}

// What the parts of a row's context left: [group, D + 2] = sums, maximum, sum of weights. Joins `count` of
// them that stand `stride` floats apart, in order.
template <int D>
__device__ float join(const float* parts, int count, int64_t stride, int row, int d, float& top, float& sum) {
  top = kNothing;
  for (int i = 0; i < count; ++i) top = fmaxf(top, parts[i * stride + row * (D + 2) + D]);
  float value = 0;
  sum = 0;
  for (int i = 0; i < count; ++i) {
    const float* part = parts + i * stride + row * (D + 2);
    const float shrink = exp2f(part[D] - top);
    value = fmaf(part[d], shrink, value);
    sum = fmaf(part[D + 1], shrink, sum);
  }
  return value;
}

// A block a row, KV head and split; the last block of a row and KV head to arrive joins the splits.
template <int D>
__global__ void __launch_bounds__(kDecodeWarps * 32) decode_kernel(const Attention p) {
  extern __shared__ float parts[];  // [kDecodeWarps][group][D + 2]
  __shared__ bool last_block;
  wait_for_predecessor();
  start_successor();
  const int kv_head = blockIdx.y, split = blockIdx.z, group = p.heads / p.kv_heads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const RowTile tile = p.tiles[blockIdx.x];
  const int last = p.positions[tile.row], first = p.window > 0 ? max(0, last - p.window + 1) : 0;
  const int first_page = first / kPageTokens, last_page = last / kPageTokens;
  const int first_split = first_page / kSplitPages, splits = last_page / kSplitPages - first_split + 1;
  if (split >= splits) return;
  Rows<D, 1> rows;
  rows.load(p, tile, kv_head, g, c);
  const int32_t* table = p.pages + p.page_start[tile.sequence];
  constexpr int kPagesPerWarp = kSplitPages / kDecodeWarps;
  for (int i = 0; i < kPagesPerWarp; ++i) {
    const int index = (first_split + split) * kSplitPages + warp * kPagesPerWarp + i;
    if (index >= first_page && index <= last_page) rows.page(p, table, index, kv_head, g, c);
  }
  const int64_t stride = static_cast<int64_t>(group) * (D + 2);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = quad_sum(rows.sum[0][h]);
    const int row = rows.row(0, h, g);
    if (row >= group) continue;
    float* part = parts + warp * stride + row * (D + 2);
    for (int n = 0; n < D / 8; ++n)
      part[8 * n + 2 * c] = rows.acc[0][n][2 * h], part[8 * n + 2 * c + 1] = rows.acc[0][n][2 * h + 1];
    if (c == 0) part[D] = rows.max[0][h], part[D + 1] = sum;
  }
  __syncthreads();
  float* partial =
      p.partial +
      (static_cast<int64_t>(splits > 1 ? p.partial_start[blockIdx.x] + split : 0) * p.kv_heads + kv_head) *
          stride;
  const auto finish = [&](const float* from, int count, int64_t step, bool whole) {
    for (int i = threadIdx.x; i < group * D; i += kDecodeWarps * 32) {
      const int row = i / D, d = i % D, head = kv_head * group + row;
      float top, sum;
      const float value = join<D>(from, count, step, row, d, top, sum);
      if (!whole) {
        partial[row * (D + 2) + d] = value;
        if (d == 0) partial[row * (D + 2) + D] = top, partial[row * (D + 2) + D + 1] = sum;
        continue;
      }
      const float sink = p.sinks[head] * kLog2E, all = fmaxf(top, sink), shrink = exp2f(top - all);
      write(p, (static_cast<int64_t>(tile.row) * p.heads + head) * D + d,
            value * shrink / (sum * shrink + exp2f(sink - all)));
    }
  };
  finish(parts, kDecodeWarps, stride, splits == 1);
  if (splits == 1) return;
  __threadfence();
  __syncthreads();
  int* arrived = p.arrived + blockIdx.x * p.kv_heads + kv_head;
  if (threadIdx.x == 0) last_block = atomicAdd(arrived, 1) == splits - 1;
  __syncthreads();
  if (!last_block) return;
  __threadfence();
  if (threadIdx.x == 0) *arrived = 0;
  finish(p.partial + (static_cast<int64_t>(p.partial_start[blockIdx.x]) * p.kv_heads + kv_head) * stride,
         splits, p.kv_heads * stride, true);
}

template <int D>
Status run_decode(const Attention& p, cudaStream_t stream) {
  const size_t shared = sizeof(float) * kDecodeWarps * (p.heads / p.kv_heads) * (D + 2);
  return launch(decode_kernel<D>, dim3(p.tile_count, p.kv_heads, p.splits), dim3(kDecodeWarps * 32), shared,
                stream, p);
}
template <int D>
Status run_prefill(const Attention& p, cudaStream_t stream) {
  return launch(prefill_kernel<D, 2>, dim3((p.tile_count + kPrefillWarps - 1) / kPrefillWarps, p.kv_heads),
                dim3(kPrefillWarps * 32), 0, stream, p);
}

}  // namespace

Status attend_prefill(const Attention& p, cudaStream_t stream) {
  return p.head_dim == 32   ? run_prefill<32>(p, stream)
         : p.head_dim == 64 ? run_prefill<64>(p, stream)
                            : run_prefill<128>(p, stream);
}
Status attend_decode(const Attention& p, cudaStream_t stream) {
  return p.head_dim == 32   ? run_decode<32>(p, stream)
         : p.head_dim == 64 ? run_decode<64>(p, stream)
                            : run_decode<128>(p, stream);
}

}  // namespace moesaic::cuda
