// Epilogues of the matrix products: what becomes of two sums of one token.
//
// Maths    Store   out = value + bias (+ out, the residual)
//          SwiGlu  out = swiglu(gate + bias, up + bias), in F16 or BF16
//          Qkv     bias; RoPE on Q and K; Q stored in BF16, K and V appended to their pages (kv_page.h)
// Shapes   (weight_tile, pair) names the rows 16 m + g and 16 m + 8 + g of a weight tile, pair = 8 m + g: the
//          two that a lane of the MMA holds. Rows are ordered (RowOrder in layout/matrix.h) so that these
//          are gate and up of one column, or the two halves of a head that RoPE joins.
// Roles    any thread, each pair on its own: no shared memory, no barriers.
// Ordering prepare() reads what does not depend on the product (bias, residual, rotation, the place of K and
//          V), so that a kernel can call it before its sums are there; finish() writes. Each value has one
//          writer, and is read by the kernels that follow.
// Bytes    what is written, once; biases come from L2.
#pragma once

#include <cuda_fp8.h>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/operands.h"
#include "backend/cuda/layout/kv_page.h"
#include "backend/cuda/layout/weight_tile.h"

namespace moesaic::cuda {

struct StoreReady {
  float bias[2], before[2];
};
__device__ inline StoreReady prepare(const Store& e, int weight_tile, int pair, int out_row, int expert) {
  StoreReady ready{};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = weight_tile * kWeightTileRows + pair / 8 * 16 + pair % 8 + 8 * h;
    if (row >= e.rows) continue;
    if (e.bias != nullptr) ready.bias[h] = e.bias[static_cast<int64_t>(expert) * e.rows + row];
    if (e.add) ready.before[h] = e.out[out_row * e.stride + row];
  }
  return ready;
}
__device__ inline void finish(const Store& e, const StoreReady& ready, int weight_tile, int pair, int out_row,
                              float v0, float v1) {
  const int r0 = weight_tile * kWeightTileRows + pair / 8 * 16 + pair % 8, r1 = r0 + 8;
  float* out = e.out + out_row * e.stride;
  if (r0 < e.rows) out[r0] = ready.before[0] + (v0 + ready.bias[0]);
  if (r1 < e.rows) out[r1] = ready.before[1] + (v1 + ready.bias[1]);
}

struct SwiGluReady {
  float gate_bias, up_bias;
};
__device__ inline SwiGluReady prepare(const SwiGlu& e, int weight_tile, int pair, int, int expert) {
  const int i = weight_tile * (kWeightTileRows / 2) + pair;
  if (i >= e.intermediate) return {};
  const int64_t at = static_cast<int64_t>(expert) * e.intermediate + i;
  return {e.gate_bias[at], e.up_bias[at]};
}
__device__ inline void finish(const SwiGlu& e, const SwiGluReady& ready, int weight_tile, int pair,
                              int out_row, float v0, float v1) {
  const int i = weight_tile * (kWeightTileRows / 2) + pair;
  if (i >= e.intermediate) return;
  const float y = swiglu(v0 + ready.gate_bias, v1 + ready.up_bias, e.alpha, e.limit, e.offset);
  const int64_t at = static_cast<int64_t>(out_row) * e.intermediate + i;
  if (e.bf16) {
    static_cast<__nv_bfloat16*>(e.out)[at] = __float2bfloat16_rn(y);
  } else {
    static_cast<__half*>(e.out)[at] = __float2half_rn(y);
  }
}

// A weight tile's pair: its head, counted on from Q's to K's and V's, and its first dimension; the other
// one is head_dim / 2 behind.
struct HeadPart {
  int head, d;
  __device__ HeadPart(const Qkv& e, int weight_tile, int pair) {
    const int head_bits = e.head_dim / 64;  // 32, 64, 128: 1, 2, 4 weight tiles
    head = weight_tile >> head_bits;
    d = (weight_tile & ((1 << head_bits) - 1)) * (kWeightTileRows / 2) + pair;
  }
};
// Dimension d of a row's head.
__device__ inline __nv_bfloat16* query_at(const Qkv& e, int head, int d, int row) {
  return e.q + (static_cast<int64_t>(row) * e.heads + head) * e.head_dim + d;
}
// A KV head's page of K or V, and in it the bytes before dimension d of a token. fp8: as e.fp8 says.
__device__ inline uint8_t* page_of(const Qkv& e, bool fp8, bool key, int kv_head, int slot) {
  return static_cast<uint8_t*>(key ? e.k : e.v) +
         (static_cast<int64_t>(slot / kPageTokens) * e.kv_heads + kv_head) * kPageTokens * e.head_dim *
             (fp8 ? 1 : 2);
}
__device__ inline int place_in_page(const Qkv& e, bool fp8, bool key, int token, int d) {
  return fp8 ? (key ? k8_at(e.head_dim, token, d) : v8_at(token, d))
             : 2 * (key ? k_at(e.head_dim, token, d) : v_at(token, d));
}
// RoPE. r: cosine and sine.
__device__ inline void rotate(float2 r, float& v0, float& v1) {
  const float a = v0 * r.x - v1 * r.y;
  v1 = v1 * r.x + v0 * r.y;
  v0 = a;
}

// Where two dimensions of Q, K or V go is known before their sums are there.
struct QkvReady {
  float bias[2];
  float2 rotation;
  void* to[2];
};
__device__ inline QkvReady prepare(const Qkv& e, int weight_tile, int pair, int row, int) {
  const auto [head, d] = HeadPart(e, weight_tile, pair);
  const int half = e.head_dim / 2;
  const float* bias = e.bias + head * e.head_dim + d;
  QkvReady ready{{bias[0], bias[half]}, e.rotation[static_cast<int64_t>(row) * half + d], {}};
  if (head < e.heads) {
    __nv_bfloat16* q = query_at(e, head, d, row);
    ready.to[0] = q, ready.to[1] = q + half;
    return ready;
  }
  const bool key = head < e.heads + e.kv_heads;
  const int kv_head = head - e.heads - (key ? 0 : e.kv_heads), at = e.slots[row], token = at % kPageTokens;
  uint8_t* page = page_of(e, e.fp8, key, kv_head, at);
#pragma unroll
  for (int h = 0; h < 2; ++h) ready.to[h] = page + place_in_page(e, e.fp8, key, token, d + h * half);
  return ready;
}
__device__ inline void finish(const Qkv& e, const QkvReady& ready, int weight_tile, int, int, float v0,
                              float v1) {
  const int head = weight_tile >> e.head_dim / 64;
  v0 += ready.bias[0];
  v1 += ready.bias[1];
  if (head < e.heads + e.kv_heads) rotate(ready.rotation, v0, v1);
  if (e.fp8 && head >= e.heads) {
    *static_cast<__nv_fp8_storage_t*>(ready.to[0]) = __nv_cvt_float_to_fp8(v0, __NV_SATFINITE, __NV_E4M3);
    *static_cast<__nv_fp8_storage_t*>(ready.to[1]) = __nv_cvt_float_to_fp8(v1, __NV_SATFINITE, __NV_E4M3);
  } else {
    *static_cast<__nv_bfloat16*>(ready.to[0]) = __float2bfloat16_rn(v0);
    *static_cast<__nv_bfloat16*>(ready.to[1]) = __float2bfloat16_rn(v1);
  }
}

template <class Epilogue>
__device__ inline void finish(const Epilogue& e, int weight_tile, int pair, int out_row, int expert, float v0,
                              float v1) {
  finish(e, prepare(e, weight_tile, pair, out_row, expert), weight_tile, pair, out_row, v0, v1);
}

}  // namespace moesaic::cuda
