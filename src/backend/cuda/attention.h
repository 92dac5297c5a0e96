// Attention over a paged KV cache with grouped queries, sinks and sliding windows.
//
// One order of sums for prefill and decoding, fixed by absolute positions, so that a row's result does not
// depend on batch or chunk, and is the same bits where one of the two kernels computes it:
//   block   128 keys: scores, their maximum, weights exp(score - maximum) rounded to BF16, weighted values
//   span    8 blocks (1,024 keys), joined in order
//   row     its spans joined in order onto the sink, which is where the running maximum and sum start
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/device.h"
#include "backend/cuda/kv_page.h"

namespace moesaic::cuda {

inline constexpr int kBlockPages = 4, kBlockTokens = kBlockPages * kPageTokens;
inline constexpr int kSpanBlocks = 8, kSpanTokens = kSpanBlocks * kBlockTokens;

// Consecutive rows of one sequence that a thread block computes together; one row: decoding.
struct alignas(16) RowTile {
  int row, count;
  int position;  // of the first row
  int partial;   // decoding: spans of the full contexts of the rows before
  int table[2];  // where the page tables begin in Attention::pages: of full and of sliding layers
  int unused[2];
};

struct Attention {
  const __nv_bfloat16* q = nullptr;  // [rows, heads, head_dim]
  const void* k = nullptr;           // pages of kv_page.h
  const void* v = nullptr;
  bool fp8 = false;                // the pages' format
  const float* sinks = nullptr;    // [heads]
  const int32_t* pages = nullptr;  // all page tables
  int heads = 0, kv_heads = 0, head_dim = 0;
  int window = 0;        // tokens, the token itself included; 0: all
  bool sliding = false;  // the page table is that of the sliding layers
  void* out = nullptr;   // [rows, heads, head_dim] BF16, or F16
  bool bf16 = true;
  const RowTile* tiles = nullptr;
  int tile_count = 0;
  // Decoding only.
  int blocks = 1;  // at least those of the longest context: what the grid is made for
  // Where blocks > kSpanBlocks: [spans of all tiles, heads, head_dim + 2].
  float* partial = nullptr;
  int* arrivals = nullptr;  // [kMostArrivals], zeros, left so
};

// Blocks of all rows and KV heads that get a thread block each: what runs at once on 132 multiprocessors,
// twice. Of more, a thread block takes a span.
inline constexpr int kFewBlocks = 1600;
inline constexpr int kMostGroup = 16;  // query heads of a KV head
inline constexpr int kMostArrivals = kFewBlocks / kSpanBlocks * kMostGroup;

// A prefill tile: two groups of 64 MMA rows, each (token, query head) of one KV head.
inline constexpr int kPrefillGroups = 2, kGroupRows = 64;
inline int tile_tokens(int heads, int kv_heads) { return kPrefillGroups * (kGroupRows / (heads / kv_heads)); }

Status attend_prefill(const Attention& p, cudaStream_t stream);
// Reads tokens of earlier steps, `tiles` and `pages` before its predecessor has ended: a step must begin with
// an operation that waits for everything before it, and only such an operation may write those.
Status attend_decode(const Attention& p, cudaStream_t stream);
// attend_prefill with what every device has: mma.sync, and a page (32 keys) where it takes a block. Another
// order of sums than theirs, as fixed.
Status attend_portable(const Attention& p, cudaStream_t stream);

}  // namespace moesaic::cuda
