// Parts that the attention kernels share: softmax arithmetic, FP8 values, where a page lies.
//
// Maths    a softmax is computed with powers of two: a score is multiplied by log2(e) / sqrt(D). Running has
//          the maximum and the sum of weights so far; join() adds another, and says by what the values summed
//          on both sides are multiplied. attention.h has the order of the sums.
// Shapes   kv_page.h has a page's. quad_max() and quad_sum() are over the 4 lanes of an MMA row.
// Roles    any warp; no shared memory, no barriers.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/ptx/exp2.cuh"

namespace moesaic::cuda {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kNothing = -1.0e30f;  // the maximum of no keys: finite, so that differences are

// Scores are multiplied by this: the softmax is computed with powers of two.
__device__ inline float score_scale(int head_dim) { return rsqrtf(static_cast<float>(head_dim)) * kLog2E; }
__device__ inline uint32_t pack_bf16(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ inline uint32_t pack_f16(float lo, float hi) {
  const __half2 v = __floats2half2_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}
// Four E4M3 values as BF16, exactly: exponent and mantissa where BF16 has them, times 2^(127 - 7).
__device__ inline uint2 widen_e4m3(uint32_t bytes) {
  const auto widen = [](uint32_t high) {  // a value in the upper byte of each half
    const uint32_t bits = (high & 0x80008000u) | (high >> 4 & 0x07F007F0u), factor = 0x7B807B80u;
    const __nv_bfloat162 v = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits),
                                     *reinterpret_cast<const __nv_bfloat162*>(&factor));
    return *reinterpret_cast<const uint32_t*>(&v);
  };
  return {widen(__byte_perm(bytes, 0, 0x1404)), widen(__byte_perm(bytes, 0, 0x3424))};
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

// A running softmax: what was summed is relative to 2^max.
struct Running {
  float max, sum;
  __device__ static Running nothing() { return {kNothing, 0}; }
  __device__ static Running sink(float logit) { return {logit * kLog2E, 1}; }
  // Multiplied by it the sum of values becomes their mean.
  __device__ float inverse() const { return __frcp_rn(sum); }
};
// By what the values on both sides are multiplied when `other` joins.
struct Join {
  float kept, added;
};
__device__ inline Join join(Running& to, const Running& other) {
  const float top = fmaxf(to.max, other.max);
  const Join by{exp2_fast(to.max - top), exp2_fast(other.max - top)};
  to = {top, fmaf(other.sum, by.added, __fmul_rn(to.sum, by.kept))};
  return by;
}
__device__ inline float joined(const Join& by, float value, float other) {
  return fmaf(other, by.added, __fmul_rn(value, by.kept));
}

// Where a page of the tile's table lies in the cache, of one KV head; size: of a page.
__device__ inline int64_t page_at(const Attention& p, const RowTile& tile, int page, int kv_head, int size) {
  const int32_t at = p.pages[(p.sliding ? tile.table[1] : tile.table[0]) + page];
  return (static_cast<int64_t>(at) * p.kv_heads + kv_head) * size;
}

// Calls run(head_dim, fp8) with constants, for the shapes that are compiled.
template <class Run>
Status for_shape(const Attention& p, const Run& run) {
  const auto sized = [&](auto head_dim) {
    return p.fp8 ? run(head_dim, std::true_type()) : run(head_dim, std::false_type());
  };
  return p.head_dim == 32   ? sized(std::integral_constant<int, 32>())
         : p.head_dim == 64 ? sized(std::integral_constant<int, 64>())
                            : sized(std::integral_constant<int, 128>());
}

}  // namespace moesaic::cuda
