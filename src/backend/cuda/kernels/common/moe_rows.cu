// A caller's rows, choices and logits for the experts' kernels, and their results as the caller wants them.
// Contracts: kernels/common/moe_rows.h.
//
// Maths    take   x F16 or BF16; logits F32; choices by local number; log of the weights as logits
//          give   factor * sum of experts, rounded once
// Shapes   hidden a multiple of 32: 8 values a thread and turn
//
// Grid     a CTA a row; bias: a CTA an expert
// Barriers take: two, around the row's verdict in shared memory. give: none
// Ordering All is read and written after the wait for the predecessor: what is written may be what an earlier
//          launch of the same call, on the same scratch memory, still reads.
// Resident No CTA waits for another.
//
// Bytes    each value once; choice_logits: top_k compares an expert.
// Floor    latency.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/moe_rows.h"
#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {
namespace {

constexpr int kRowThreads = 128;
constexpr int kRowValues = 8;  // values that a thread takes in a turn: 16 bytes of 16-bit values

__device__ inline float value_at(const void* from, RowType type, int64_t at) {
  switch (type) {
    case RowType::kF16:
      return __half2float(static_cast<const __half*>(from)[at]);
    case RowType::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]);
    default:
      return static_cast<const float*>(from)[at];
  }
}

// Values 8 i .. 8 i + 7 as F32; type: not F32.
__device__ inline void load_values(const void* from, RowType type, int64_t i, float (&v)[kRowValues]) {
  const uint4 words = static_cast<const uint4*>(from)[i];
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (type == RowType::kF16) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pairs[j]));
      v[2 * j] = two.x, v[2 * j + 1] = two.y;
    } else {
      v[2 * j] = __uint_as_float(pairs[j] << 16), v[2 * j + 1] = __uint_as_float(pairs[j] & 0xFFFF0000u);
    }
  }
}
__device__ inline void store_values(void* to, bool bf16, int64_t i, const float (&v)[kRowValues]) {
  uint32_t pairs[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (bf16) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * j], v[2 * j + 1]);
      pairs[j] = *reinterpret_cast<const uint32_t*>(&two);
    } else {
      const __half2 two = __floats2half2_rn(v[2 * j], v[2 * j + 1]);
      pairs[j] = *reinterpret_cast<const uint32_t*>(&two);
    }
  }
  static_cast<uint4*>(to)[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// ---- take: each part by all threads; false: the row's result would be wrong ----

__device__ bool take_x(const TakenRows& p, int row) {
  constexpr float kMostF16 = 65504.0f, kMostBF16 = 3.3e38f;
  bool good = true;
  const int vectors = p.hidden / kRowValues;
  for (int i = threadIdx.x; i < vectors; i += kRowThreads) {
    const int64_t at = static_cast<int64_t>(row) * vectors + i;
    float v[kRowValues];
    load_values(p.x, p.x_type, at, v);
#pragma unroll
    for (int j = 0; j < kRowValues; ++j) good &= fabsf(v[j]) <= (p.bf16_out ? kMostBF16 : kMostF16);
    store_values(p.x_out, p.bf16_out, at, v);
  }
  return good;
}

__device__ bool take_logits(const TakenRows& p, int row) {
  bool good = true;
  for (int i = threadIdx.x; i < p.logit_count; i += kRowThreads) {
    const int64_t at = static_cast<int64_t>(row) * p.logit_count + i;
    const float v = value_at(p.logits, p.logits_type, at);
    good &= v <= 3.0e38f;
    p.logits_out[at] = v;
  }
  return good;
}

// A row's choice, in shared memory.
struct RowChoice {
  int32_t ids[kMostTakenTopK];
  float weights[kMostTakenTopK];
  int bad;
};
__device__ bool take_choice(const TakenRows& p, int row, RowChoice& choice) {
  const int k = threadIdx.x;
  if (k >= p.top_k) return true;
  const int64_t at = static_cast<int64_t>(row) * p.top_k + k;
  const int64_t id =
      p.ids64 ? static_cast<const int64_t*>(p.ids)[at] : static_cast<const int32_t*>(p.ids)[at];
  const int64_t local = id - p.first_expert;
  const bool here = local >= 0 && local < p.experts;
  const float weight = here ? p.weights[at] : 0.0f;
  choice.ids[k] = here ? static_cast<int32_t>(local) : -1, choice.weights[k] = weight;
  p.local_ids[at] = choice.ids[k], p.local_weights[at] = weight, p.permuted_rows[at] = -1;
  return weight >= 0 && weight <= 3.0e38f;
}
// After a barrier.
__device__ void write_choice_logits(const TakenRows& p, int row, const RowChoice& choice) {
  for (int expert = threadIdx.x; expert < p.experts; expert += kRowThreads) {
    float weight = 0;
    for (int k = 0; k < p.top_k; ++k) weight += choice.ids[k] == expert ? choice.weights[k] : 0.0f;
    p.choice_logits[static_cast<int64_t>(row) * p.experts + expert] = weight > 0 ? logf(weight) : -INFINITY;
  }
}

__device__ void clear_row(const TakenRows& p, int row) {
  if (p.sums != nullptr) {
    float4* const sums = reinterpret_cast<float4*>(p.sums) + static_cast<int64_t>(row) * (p.hidden / 4);
    for (int i = threadIdx.x; i < p.hidden / 4; i += kRowThreads) sums[i] = make_float4(0, 0, 0, 0);
  }
  for (int i = threadIdx.x; i < p.empty_vectors; i += kRowThreads)
    p.empty[static_cast<int64_t>(row) * p.empty_vectors + i] = make_uint4(~0u, ~0u, ~0u, ~0u);
}

__global__ void __launch_bounds__(kRowThreads) take_rows_kernel(const TakenRows p) {
  extern __shared__ RowChoice row_choice[];
  RowChoice& choice = row_choice[0];
  const int row = blockIdx.x;
  if (threadIdx.x == 0) choice.bad = 0;
  wait_for_predecessor();
  launch_dependents();
  __syncthreads();
  bool good = true;
  if (p.x != nullptr) good &= take_x(p, row);
  if (p.logits != nullptr) good &= take_logits(p, row);
  if (p.ids != nullptr) good &= take_choice(p, row, choice);
  clear_row(p, row);
  if (!good) choice.bad = 1;
  if (row == 0 && threadIdx.x == 0 && p.cleared != nullptr) *p.cleared = 0;
  __syncthreads();
  if (p.choice_logits != nullptr) write_choice_logits(p, row, choice);
  if (threadIdx.x > 0) return;
  float factor = choice.bad != 0 ? __uint_as_float(0x7FC00000u) : 1.0f;
  if (p.choice_logits != nullptr) {
    float sum = 0;
    for (int k = 0; k < p.top_k; ++k) sum += choice.weights[k];
    factor *= sum;
  }
  p.factors[row] = p.has_factors ? p.factors[row] * factor : factor;
}

// ---- give ----

__device__ inline void add_values(const float* from, int64_t i, float weight, float (&v)[kRowValues]) {
#pragma unroll
  for (int j = 0; j < kRowValues / 4; ++j) {
    const float4 y = reinterpret_cast<const float4*>(from)[i * (kRowValues / 4) + j];
    v[4 * j] = fmaf(weight, y.x, v[4 * j]), v[4 * j + 1] = fmaf(weight, y.y, v[4 * j + 1]);
    v[4 * j + 2] = fmaf(weight, y.z, v[4 * j + 2]), v[4 * j + 3] = fmaf(weight, y.w, v[4 * j + 3]);
  }
}

__global__ void __launch_bounds__(kRowThreads) give_rows_kernel(const GivenRows p) {
  wait_for_predecessor();
  launch_dependents();
  const int row = blockIdx.x, vectors = p.hidden / kRowValues;
  const float factor = p.factors[row];
  for (int i = threadIdx.x; i < vectors; i += kRowThreads) {
    float v[kRowValues] = {};
    if (p.sums != nullptr) {
      add_values(p.sums, static_cast<int64_t>(row) * vectors + i, 1.0f, v);
    } else {
#pragma unroll 4
      for (int k = 0; k < p.top_k; ++k) {
        const int permuted_row = p.permuted_rows[row * p.top_k + k];
        if (permuted_row >= 0)
          add_values(p.expert_out, static_cast<int64_t>(permuted_row) * vectors + i,
                     p.weights[row * p.top_k + k], v);
      }
    }
#pragma unroll
    for (int j = 0; j < kRowValues; ++j) v[j] *= factor;
    store_values(p.out, p.type == RowType::kBF16, static_cast<int64_t>(row) * vectors + i, v);
  }
}

__global__ void take_bias_kernel(const BiasValues p) {
  wait_for_predecessor();
  launch_dependents();
  const int64_t expert = blockIdx.x;
  for (int i = threadIdx.x; i < p.count; i += static_cast<int>(blockDim.x)) {
    const float v =
        p.from != nullptr ? value_at(p.from, p.type, expert * p.expert_stride + i * p.stride) : 0.0f;
    if (!(fabsf(v) <= 3.4e38f)) *p.fault = 1;
    p.out[expert * p.count + i] = v;
  }
}

}  // namespace

Status take_rows(const TakenRows& p, cudaStream_t stream) {
  return launch(take_rows_kernel, dim3(p.rows), dim3(kRowThreads), sizeof(RowChoice), stream, p);
}
Status give_rows(const GivenRows& p, cudaStream_t stream) {
  return launch(give_rows_kernel, dim3(p.rows), dim3(kRowThreads), 0, stream, p);
}
Status take_bias(const BiasValues& p, cudaStream_t stream) {
  return launch(take_bias_kernel, dim3(p.experts), dim3(256), 0, stream, p);
}

}  // namespace moesaic::cuda
