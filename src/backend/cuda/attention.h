// Attention over a paged KV cache with grouped queries, sinks and sliding windows.
//
// A warp multiplies MMA rows by pages of 32 keys: a row is one (token, query head) of a KV head's group. Keys
// are read as rows of the page and values as columns (V is stored transposed), so that every operand of
// mma.sync is a 16-byte load, without shared memory: which key stands in which column of the scores is free
// as long as the values agree.
//
//   K [pages, kv_heads, 32, head_dim], V [pages, kv_heads, head_dim, 32], BF16
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/device.h"

namespace moesaic::cuda {

inline constexpr int kPageTokens = 32;
inline constexpr int kSplitPages =
    8;  // pages of one split: fixed, so that a result does not depend on the batch

// Consecutive rows of one sequence that a warp computes together; one row: decoding.
struct RowTile {
  int row, count, sequence, unused;
};

struct Attention {
  const __nv_bfloat16* q = nullptr;  // [rows, heads, head_dim]
  const __nv_bfloat16* k = nullptr;
  const __nv_bfloat16* v = nullptr;
  const float* sinks = nullptr;         // [heads]
  const int32_t* positions = nullptr;   // [rows]
  const int32_t* pages = nullptr;       // page tables, one sequence behind the other
  const int32_t* page_start = nullptr;  // [sequences] where a sequence's table begins
  int heads = 0, kv_heads = 0, head_dim = 0;
  int window = 0;       // tokens, the token itself included; 0: all
  void* out = nullptr;  // [rows, heads, head_dim] BF16, or F16
  bool bf16 = true;
  // Prefill: tiles of at most tile_tokens() rows. Decoding: tiles of one row, split over the context.
  const RowTile* tiles = nullptr;
  int tile_count = 0;
  // Decoding only.
  int splits = 1;                          // of the longest context
  float* partial = nullptr;                // [partial_start + split, kv_heads, group, head_dim + 2]
  const int32_t* partial_start = nullptr;  // [tiles]
  int* arrived = nullptr;                  // [tiles, kv_heads], zero between steps
};

// Rows of a prefill tile: a warp has 32 MMA rows.
inline int tile_tokens(int heads, int kv_heads) { return 32 / (heads / kv_heads); }

Status attend_prefill(const Attention& p, cudaStream_t stream);
Status attend_decode(const Attention& p, cudaStream_t stream);

}  // namespace moesaic::cuda
