// What becomes of a product's sums, two rows of a token at a time.
#pragma once

#include <cuda_fp8.h>

#include "backend/cuda/kernels.cuh"
#include "backend/cuda/kv_page.h"
#include "backend/cuda/operands.h"

namespace moesaic::cuda {

// (unit, pair) names the rows 16 m + g and 16 m + 8 + g of the unit, pair = 8 m + g ----
//
// prepare() reads what does not depend on the product, so that a kernel can do it early.

struct StoreReady {
  float bias[2], before[2];
};
__device__ inline StoreReady prepare(const Store& e, int unit, int pair, int slot, int expert) {
  StoreReady ready{};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = unit * kUnit + pair / 8 * 16 + pair % 8 + 8 * h;
    if (row >= e.rows) continue;
    if (e.bias != nullptr) ready.bias[h] = e.bias[static_cast<int64_t>(expert) * e.rows + row];
    if (e.add) ready.before[h] = e.out[slot * e.stride + row];
  }
  return ready;
}
__device__ inline void finish(const Store& e, const StoreReady& ready, int unit, int pair, int slot, float v0,
                              float v1) {
  const int r0 = unit * kUnit + pair / 8 * 16 + pair % 8, r1 = r0 + 8;
  float* out = e.out + slot * e.stride;
  if (r0 < e.rows) out[r0] = ready.before[0] + (v0 + ready.bias[0]);
  if (r1 < e.rows) out[r1] = ready.before[1] + (v1 + ready.bias[1]);
}

struct SwiGluReady {
  float gate_bias, up_bias;
};
__device__ inline SwiGluReady prepare(const SwiGlu& e, int unit, int pair, int, int expert) {
  const int i = unit * (kUnit / 2) + pair;
  if (i >= e.intermediate) return {};
  const int64_t at = static_cast<int64_t>(expert) * e.intermediate + i;
  return {e.gate_bias[at], e.up_bias[at]};
}
__device__ inline void finish(const SwiGlu& e, const SwiGluReady& ready, int unit, int pair, int slot,
                              float v0, float v1) {
  const int i = unit * (kUnit / 2) + pair;
  if (i >= e.intermediate) return;
  const float y = swiglu(v0 + ready.gate_bias, v1 + ready.up_bias, e.alpha, e.limit);
  const int64_t at = static_cast<int64_t>(slot) * e.intermediate + i;
  if (e.bf16) {
    static_cast<__nv_bfloat16*>(e.out)[at] = __float2bfloat16_rn(y);
  } else {
    static_cast<__half*>(e.out)[at] = __float2half_rn(y);
  }
}

struct QkvReady {
  float bias[2];
  float2 rotation;
  int slot;
};
__device__ inline QkvReady prepare(const Qkv& e, int unit, int pair, int row, int) {
  const int per_head = e.head_dim / kUnit, half = e.head_dim / 2;
  const int head = unit / per_head, d = unit % per_head * (kUnit / 2) + pair;
  const float* bias = e.bias + head * e.head_dim + d;
  return {{bias[0], bias[half]}, e.rotation[static_cast<int64_t>(row) * half + d], e.slots[row]};
}
__device__ inline void finish(const Qkv& e, const QkvReady& ready, int unit, int pair, int row, float v0,
                              float v1) {
  const int per_head = e.head_dim / kUnit, half = e.head_dim / 2;
  const int head = unit / per_head, d = unit % per_head * (kUnit / 2) + pair;
  v0 += ready.bias[0];
  v1 += ready.bias[1];
  if (head < e.heads + e.kv_heads) {
    const float2 r = ready.rotation;
    const float a = v0 * r.x - v1 * r.y;
    v1 = v1 * r.x + v0 * r.y;
    v0 = a;
  }
  if (head < e.heads) {
    __nv_bfloat16* q = e.q + (static_cast<int64_t>(row) * e.heads + head) * e.head_dim + d;
    q[0] = __float2bfloat16_rn(v0), q[half] = __float2bfloat16_rn(v1);
    return;
  }
  const int kv_head = (head - e.heads) % e.kv_heads, slot = ready.slot % kPageTokens;
  const int64_t page =
      (static_cast<int64_t>(ready.slot / kPageTokens) * e.kv_heads + kv_head) * kPageTokens * e.head_dim;
  const bool key = head < e.heads + e.kv_heads;
  if (e.fp8) {
    auto* to = static_cast<__nv_fp8_storage_t*>(key ? e.k : e.v) + page;
    const auto at = [&](int i) { return key ? k8_at(e.head_dim, slot, i) : v8_at(slot, i); };
    to[at(d)] = __nv_cvt_float_to_fp8(v0, __NV_SATFINITE, __NV_E4M3);
    to[at(d + half)] = __nv_cvt_float_to_fp8(v1, __NV_SATFINITE, __NV_E4M3);
  } else {
    auto* to = static_cast<__nv_bfloat16*>(key ? e.k : e.v) + page;
    const auto at = [&](int i) { return key ? k_at(e.head_dim, slot, i) : v_at(slot, i); };
    to[at(d)] = __float2bfloat16_rn(v0), to[at(d + half)] = __float2bfloat16_rn(v1);
  }
}

template <class Epilogue>
__device__ inline void finish(const Epilogue& e, int unit, int pair, int slot, int expert, float v0,
                              float v1) {
  finish(e, prepare(e, unit, pair, slot, expert), unit, pair, slot, v0, v1);
}

}  // namespace moesaic::cuda
