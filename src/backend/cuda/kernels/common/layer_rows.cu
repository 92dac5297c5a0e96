// A caller's rows before and behind the dense products. Contracts: kernels/common/layer_rows.h.
//
// Maths    all in F32, rounded once
// Shapes   norm: hidden a multiple of 8: 16 bytes a thread and turn
//
// Grid     norm: a CTA a row. rotate: x: pairs of a head's halves, y: row. sum: a value a thread
// Barriers norm: those of block_sum(). Else none
// Ordering All is read and written after the wait for the predecessor: what is written may be what an earlier
//          launch of the same call, on the same scratch memory, still reads.
// Resident No CTA waits for another.
//
// Bytes    each value once; norm reads x twice, the second time from L1.
// Floor    latency.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/layer_rows.h"
#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 128;

__device__ inline float float_at(const void* from, RowType type, int64_t at) {
  if (type == RowType::kF32) return static_cast<const float*>(from)[at];
  return type == RowType::kBF16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at])
                                : __half2float(static_cast<const __half*>(from)[at]);
}
__device__ inline float2 two_bf16(uint32_t words) {
  return {__uint_as_float(words << 16), __uint_as_float(words & 0xFFFF0000u)};
}

__global__ void __launch_bounds__(kThreads) norm_rows_kernel(const NormedRows p) {
  __shared__ float scratch[kThreads / 32];
  wait_for_predecessor();
  launch_dependents();
  const int vectors = p.hidden / 8;
  const auto* x = static_cast<const uint4*>(p.x) + static_cast<int64_t>(blockIdx.x) * vectors;
  float squares = 0;
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    const uint4 v = x[i];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = two_bf16(words[j]);
      squares += two.x * two.x + two.y * two.y;
    }
  }
  const float scale = rsqrtf(block_sum(squares, scratch) / static_cast<float>(p.hidden) + p.eps);
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    const uint4 v = x[i];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = two_bf16(words[j]);
      const int column = 8 * i + 2 * j;
      const float lo = two.x * scale * float_at(p.weight, p.weight_type, column),
                  hi = two.y * scale * float_at(p.weight, p.weight_type, column + 1);
      const int64_t at = (static_cast<int64_t>(blockIdx.x) * p.hidden + column) / 2;
      if (p.bf16) {
        static_cast<__nv_bfloat162*>(p.out)[at] = __floats2bfloat162_rn(lo, hi);
      } else {
        static_cast<__half2*>(p.out)[at] = __floats2half2_rn(lo, hi);
      }
    }
  }
}

__device__ inline void put_cached(const RotatedRows& p, void* to, int64_t at, float x) {
  if (p.fp8) {
    static_cast<__nv_fp8_storage_t*>(to)[at] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  } else {
    static_cast<__nv_bfloat16*>(to)[at / 2] = __float2bfloat16_rn(x);
  }
}

__global__ void __launch_bounds__(kThreads) rotate_rows_kernel(const RotatedRows p) {
  wait_for_predecessor();
  launch_dependents();
  const int half = p.head_dim / 2, pair = static_cast<int>(blockIdx.x * kThreads + threadIdx.x),
            head = pair / half, d = pair % half;
  if (head >= p.heads + 2 * p.kv_heads) return;
  const int64_t row = blockIdx.y, position = p.positions[row], slot = p.slots[row];
  const bool sound = position >= 0 && position < p.table_positions &&
                     slot < static_cast<int64_t>(p.layout.pages) * p.layout.page_tokens;
  const float* from = p.qkv + (row * (p.heads + 2 * p.kv_heads) + head) * p.head_dim + d;
  float lo = from[0], hi = from[half];
  if (head < p.heads + p.kv_heads) {
    const float c = sound ? float_at(p.cos_sin, p.cos_sin_type, position * p.head_dim + d) : NAN,
                s = sound ? float_at(p.cos_sin, p.cos_sin_type, position * p.head_dim + half + d) : NAN;
    const float a = lo * c - hi * s;
    hi = hi * c + lo * s, lo = a;
  }
  if (head < p.heads) {
    auto* const q = static_cast<__nv_bfloat16*>(p.q) + (row * p.heads + head) * p.head_dim + d;
    q[0] = __float2bfloat16_rn(lo), q[half] = __float2bfloat16_rn(hi);
    return;
  }
  if (!sound || slot < 0) return;
  const bool key = head < p.heads + p.kv_heads;
  const int bytes = p.fp8 ? 1 : 2, kv_head = head - p.heads - (key ? 0 : p.kv_heads);
  const int64_t at = slot / p.layout.page_tokens * p.layout.page_stride +
                     slot % p.layout.page_tokens * p.layout.token_stride + kv_head * p.layout.head_stride +
                     d * bytes;
  void* const to = key ? p.k : p.v;
  put_cached(p, to, at, lo), put_cached(p, to, at + half * bytes, hi);
}

__global__ void __launch_bounds__(kThreads) sum_rows_kernel(const SummedRows p) {
  wait_for_predecessor();
  launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const RowType type = p.bf16 ? RowType::kBF16 : RowType::kF32;
  const float sum = p.sums[i] + (p.residual != nullptr ? float_at(p.residual, type, i) : 0.0f);
  if (p.bf16) {
    static_cast<__nv_bfloat16*>(p.out)[i] = __float2bfloat16_rn(sum);
  } else {
    static_cast<float*>(p.out)[i] = sum;
  }
}

unsigned ctas(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

}  // namespace

Status norm_rows(const NormedRows& p, cudaStream_t stream) {
  return launch(norm_rows_kernel, dim3(p.rows), dim3(kThreads), 0, stream, p);
}
Status rotate_rows(const RotatedRows& p, cudaStream_t stream) {
  const int pairs = (p.heads + 2 * p.kv_heads) * (p.head_dim / 2);
  return launch(rotate_rows_kernel, dim3(ctas(pairs), p.rows), dim3(kThreads), 0, stream, p);
}
Status sum_rows(const SummedRows& p, cudaStream_t stream) {
  return launch(sum_rows_kernel, dim3(ctas(p.count)), dim3(kThreads), 0, stream, p);
}

}  // namespace moesaic::cuda
