// A caller's rows before and behind the dense products of layer_operators.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/common/moe_rows.h"
#include "backend/cuda/kernels/common/paged_attention.h"
#include "moesaic/status.h"

namespace moesaic::cuda {

// out = x / sqrt(mean(x^2) + eps) * weight
struct NormedRows {
  const void* x = nullptr;  // [rows, hidden] BF16, 16-byte aligned
  int rows = 0, hidden = 0;
  const void* weight = nullptr;  // [hidden]
  RowType weight_type = RowType::kBF16;
  float eps = 0;
  void* out = nullptr;  // [rows, hidden] BF16, or F16
  bool bf16 = true;
};
Status norm_rows(const NormedRows& p, cudaStream_t stream);

// RoPE on Q and K; Q goes out, K and V to the cache. Q is NaN where the position is not in the table or the
// slot beyond the cache; K and V are left then, and where the slot is negative.
struct RotatedRows {
  const float* qkv = nullptr;  // [rows, (heads + 2 kv_heads) head_dim]
  int rows = 0, heads = 0, kv_heads = 0, head_dim = 0;
  const int64_t* positions = nullptr;  // [rows]
  const void* cos_sin = nullptr;       // [table_positions, head_dim]
  RowType cos_sin_type = RowType::kF32;
  int64_t table_positions = 0;
  const int64_t* slots = nullptr;  // [rows]
  PagedLayout layout;
  bool fp8 = false;
  void* q = nullptr;  // [rows, heads, head_dim] BF16
  void* k = nullptr;
  void* v = nullptr;
};
Status rotate_rows(const RotatedRows& p, cudaStream_t stream);

// out[i] = sums[i] + residual[i]; out may be the residual.
struct SummedRows {
  const float* sums = nullptr;
  int64_t count = 0;
  const void* residual = nullptr;  // null: none
  void* out = nullptr;
  bool bf16 = true;  // out and residual; else F32
};
Status sum_rows(const SummedRows& p, cudaStream_t stream);

}  // namespace moesaic::cuda
