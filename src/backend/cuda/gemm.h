// y = W x: weights are the rows of the MMA, tokens its columns. Two kernels, for few tokens (gemm_few.cuh: 8
// to 32) and for many (gemm_many.cuh: 64 or 128), which add in the same order (tile.cuh): a result depends on
// the unit's weights and its own token only, not on the tile, the batch or the grid.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/matrix.h"

namespace moesaic::cuda {

// Tokens [first, first + count) of the slots of one expert. start: where sm90a/gemm_wide.h's tile begins.
struct Job {
  int expert, first, count, start;
};
// Tokens that such a tile has room for: what wgmma is compiled for.
__host__ __device__ constexpr int tile_width(int count) { return count <= 8 ? 8 : (count + 15) / 16 * 16; }

// The other operand. Slot s reads row rows[s] of x, or row s where rows is null.
struct Activations {
  const void* x = nullptr;  // [.., cols] BF16 or F16, as takes_bf16() says
  const int32_t* rows = nullptr;
  float factor = 1;  // what the result is multiplied by
  int tokens = 0;    // dense: slots. Grouped: the most jobs there can be
  // Grouped by expert: jobs on the device, each of at most `tile` slots. Null: one matrix, all tokens.
  const Job* jobs = nullptr;
  const int* job_count = nullptr;
  int tile = 8;  // tokens of a tile: 8, 16, 32, 64 or 128
};

// out[slot, row] (+)= value + bias[expert, row]
struct Store {
  float* out = nullptr;
  int64_t stride = 0;
  const float* bias = nullptr;  // [experts, rows] or null
  int rows = 0;
  bool add = false;
};
// out[slot, i] = swiglu(gate + bias, up + bias)
struct SwiGlu {
  void* out = nullptr;  // [slots, intermediate] F16, or BF16
  bool bf16 = false;
  int intermediate = 0;
  const float* gate_bias = nullptr;  // [experts, intermediate]
  const float* up_bias = nullptr;
  float alpha = 0, limit = 0;
};
// Bias and RoPE; Q is kept, K and V go to their pages.
struct Qkv {
  const float* bias = nullptr;  // [q, k, v]
  int head_dim = 0, heads = 0, kv_heads = 0;
  const float2* rotation = nullptr;  // [rows, head_dim / 2] cosine and sine
  __nv_bfloat16* q = nullptr;        // [rows, heads * head_dim]
  void* k = nullptr;                 // pages of kv_page.h
  void* v = nullptr;
  bool fp8 = false;
  const int32_t* slots = nullptr;  // [rows] page * 32 + token in the page
};

Status gemm(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream);
Status gemm(const Matrix& w, const Activations& x, const SwiGlu& out, cudaStream_t stream);
Status gemm(const Matrix& w, const Activations& x, const Qkv& out, cudaStream_t stream);

}  // namespace moesaic::cuda
