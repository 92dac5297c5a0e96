// Work tiles and epilogues of the matrix products: plain structs, the same on host and device and under
// NVRTC.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace moesaic::cuda {

// Permuted rows [first, first + count), all of one expert. start: the token of the activation buffer at which
// they begin, where kernels want each work tile's in a place of its own (kernels/sm90/gemm_wgmma.h,
// kernels/sm120/operands.h).
struct WorkTile {
  int expert, first, count, start;
};
// Tokens of a work tile rounded up to a width that wgmma has.
__host__ __device__ constexpr int tile_width(int count) { return count <= 8 ? 8 : (count + 15) / 16 * 16; }

// Activations for wgmma stand in tiles of 64 columns: a row's 128 bytes are chunks of 16. Within 32 columns
// chunk q holds the columns 8 c + 2 q + {0, 1} of c = 0..3, as the MMAs take them; of the eight chunks chunk
// i of row n stands at chunk_place(i, n).
__host__ __device__ constexpr int chunk_place(int chunk, int row) { return chunk ^ row % 8; }
// In FP8 a row's 64 bytes are four chunks.
__host__ __device__ constexpr int fp8_place(int chunk, int row) { return chunk ^ row / 2 % 4; }
// A row of the 16-bit activations of a dense product: [rows, cols], or, if tile > 0, [rows / tile][cols / 64]
// [tile][8 chunks].
struct ActivationRow {
  int64_t first;  // where its first 64 columns stand
  int tile, place;
  __host__ __device__ constexpr ActivationRow(int tile_rows, int cols, int row)
      : first(static_cast<int64_t>(row) * cols), tile(tile_rows), place(0) {
    if (tile == 0) return;
    place = row % tile;
    first = (static_cast<int64_t>(row - place) * (cols / 64) + place) * 64;
  }
  // The place of chunk q of 32 columns. The row must be in tiles.
  __host__ __device__ constexpr int64_t chunk(int block, int q) const {
    return first + static_cast<int64_t>(block / 2 * tile) * 64 + chunk_place(block % 2 * 4 + q, place) * 8;
  }
  // Columns 2 i and 2 i + 1 are neighbours.
  __host__ __device__ constexpr int64_t at(int column) const {
    if (tile == 0) return first + column;
    return chunk(column / 32, column % 8 / 2) + column % 32 / 8 * 2 + column % 2;
  }
};

// out[permuted_row, row] (+)= value + bias[expert, row]
struct Store {
  float* out = nullptr;
  int64_t stride = 0;
  const float* bias = nullptr;  // [experts, rows] or null
  int rows = 0;
  bool add = false;
};
// out[permuted_row, i] = swiglu(gate + bias, up + bias), with up + offset
struct SwiGlu {
  void* out = nullptr;  // [permuted_rows, intermediate] F16, or BF16
  bool bf16 = false;
  int intermediate = 0;
  const float* gate_bias = nullptr;  // [experts, intermediate]
  const float* up_bias = nullptr;
  float alpha = 0, limit = 0, offset = 1;
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
