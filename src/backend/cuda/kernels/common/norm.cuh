// RMSNorm of one row by a CTA, with the deferred residual added before (kernels/common/route.h).
//
// Maths    x += sum_k weights[k] expert_out[permuted_rows[k]], in the order of k; out = x / rms(x) * weight
// Shapes   x [rows, hidden] F32; values [hidden] F32 in shared memory
// CTA      kNormThreads threads, alike: thread t has the float4 t, t + 128, ..
// Barriers two, in block_sum(), and one at the end: `values` is complete then
// Ordering norm_row() reads what the predecessor wrote, so it is called after the wait. If something is
//          deferred, the row of x is written back: only one CTA may norm a row then.
// Bytes    x once, expert_out top_k times, and the residual back. Shared memory: 4 hidden bytes.
// Order    of the sum of squares: the same wherever norm_row() is used.
#pragma once

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/route.h"

namespace moesaic::cuda {

inline constexpr int kNormThreads = 128;
inline constexpr int kNormLoads = 6;  // float4 of a row that a thread has in flight at once

// Elements i, i + kNormThreads, .. of a row, what is deferred added.
__device__ inline void residual(const Norm& p, int row, int i, float4 (&sum)[kNormLoads]) {
  const auto load = [&](const float* from, int64_t at, int j) {
    const int index = min(i + j * kNormThreads, p.hidden / 4 - 1);
    return reinterpret_cast<const float4*>(from + at * p.hidden)[index];
  };
#pragma unroll
  for (int j = 0; j < kNormLoads; ++j) sum[j] = load(p.x, row, j);
  if (p.deferred.expert_out == nullptr) return;
#pragma unroll 4
  for (int k = 0; k < p.deferred.top_k; ++k) {
    const int permuted_row = p.deferred.permuted_rows[row * p.deferred.top_k + k];
    const float weight = p.deferred.weights[row * p.deferred.top_k + k];
#pragma unroll
    for (int j = 0; j < kNormLoads; ++j) {
      const float4 y = load(p.deferred.expert_out, permuted_row, j);
      sum[j] = {fmaf(weight, y.x, sum[j].x), fmaf(weight, y.y, sum[j].y), fmaf(weight, y.z, sum[j].z),
                fmaf(weight, y.w, sum[j].w)};
    }
  }
}

// The row's normed values in shared memory, by one CTA of kNormThreads: the order of the sum is the same
// wherever a row is normed. scratch: a float a warp.
__device__ inline void norm_row(const Norm& p, int row, float4* values, float* scratch) {
  float squares = 0;
  for (int first = threadIdx.x; first < p.hidden / 4; first += kNormLoads * kNormThreads) {
    float4 sum[kNormLoads];
    residual(p, row, first, sum);
#pragma unroll
    for (int j = 0; j < kNormLoads; ++j) {
      const int i = first + j * kNormThreads;
      if (i >= p.hidden / 4) break;
      const float4 v = sum[j];
      values[i] = v;
      squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
      if (p.deferred.expert_out != nullptr)
        reinterpret_cast<float4*>(p.x + static_cast<int64_t>(row) * p.hidden)[i] = v;
    }
  }
  const float mean = block_sum(squares, scratch) / static_cast<float>(p.hidden);
  if (!(mean <= 3.0e38f) && threadIdx.x == 0) atomicCAS(p.fault, 0, p.code);
  const float scale = rsqrtf(mean + p.eps);
  for (int i = threadIdx.x; i < p.hidden / 4; i += kNormThreads) {
    const float4 v = values[i], w = reinterpret_cast<const float4*>(p.weight)[i];
    values[i] = {v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w};
  }
  __syncthreads();
}

__device__ inline uint2 half_words(const float4& v, float factor, bool bf16) {
  if (bf16) {
    const __nv_bfloat162 lo = __floats2bfloat162_rn(v.x * factor, v.y * factor),
                         hi = __floats2bfloat162_rn(v.z * factor, v.w * factor);
    return {*reinterpret_cast<const uint32_t*>(&lo), *reinterpret_cast<const uint32_t*>(&hi)};
  }
  const __half2 lo = __floats2half2_rn(v.x * factor, v.y * factor),
                hi = __floats2half2_rn(v.z * factor, v.w * factor);
  return {*reinterpret_cast<const uint32_t*>(&lo), *reinterpret_cast<const uint32_t*>(&hi)};
}

}  // namespace moesaic::cuda
