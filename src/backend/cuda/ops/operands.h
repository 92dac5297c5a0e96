// What the products' kernels are told besides their operands' bytes: plain structs, the same on host and
// device (and under NVRTC, which has no host's headers).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace moesaic::cuda {

inline constexpr int kUnit = 32;   // rows
inline constexpr int kBlock = 32;  // columns

// Tokens [first, first + count) of the slots of one expert. start: where kernels/sm90/gemm_wgmma.h's tile
// begins.
struct Job {
  int expert, first, count, start;
};
// Tokens that such a tile has room for: what wgmma is compiled for.
__host__ __device__ constexpr int tile_width(int count) { return count <= 8 ? 8 : (count + 15) / 16 * 16; }

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

}  // namespace moesaic::cuda
