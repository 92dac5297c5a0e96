// Attention over a paged KV cache with grouped queries, sinks and sliding windows.
//
// Two orders of sums, both fixed by a row's own keys, so that its result does not depend on batch or chunk:
//   prefill   blocks of 128 keys: weights exp(score - shift) rounded to BF16, weighted values. A row's shift
//             is the maximum of its first block, and that of a later block which exceeds it by more than 8
//             binary orders. Spans of 8 blocks (1,024 keys) are summed on the tensor cores, and joined in
//             order onto the sink, which is where the running maximum and sum start
//   decoding  the row's pages in kv_splits_of() equal KV splits. Each of four warps has every fourth page
//             of a split; it weighs a page relative to the greatest score so far (weights rounded to BF16,
//             beside FP8 values to F16). The warps' results, and then the KV splits', are joined in order,
//             relative to the greatest maximum; the sink comes last
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/operands.h"
#include "backend/cuda/layout/kv_page.h"
#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// Consecutive rows of one sequence that a CTA computes together; one row: decoding.
struct alignas(16) RowTile {
  int row, count;
  int position;  // the first row's
  int table[2];  // where the page tables begin in Attention::pages: of full and of sliding layers
  int written;   // the step itself writes keys from this position on: that of its first row of the sequence
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
  int out_tile = 0;  // the tile in which out stands (ActivationRow in operands.h); 0 for attend_portable()
  const RowTile* tiles = nullptr;
  int tile_count = 0;
  int kv_splits = 1;  // decoding: at least those of the longest context
};

inline constexpr int kMostGroup = 16;  // query heads of a KV head

// Decoding: KV splits of a row. A CTA computes each, of one KV head.
inline constexpr int kKvSplitPages = 5, kMostKvSplits = 16;
constexpr int kv_splits_of(int pages) {
  const int kv_splits = (pages + kKvSplitPages - 1) / kKvSplitPages;
  return kv_splits < kMostKvSplits ? kv_splits : kMostKvSplits;
}

// A prefill tile: groups of 64 MMA rows, each (token, query head) of one KV head. attend_portable() has two.
inline constexpr int kPrefillGroups = 2, kGroupRows = 64;
constexpr int tile_tokens(int heads, int kv_heads, int groups = kPrefillGroups) {
  return groups * (kGroupRows / (heads / kv_heads));
}

// By mma.sync, on every device. A row's keys are cut into spans of kSpanPages pages, which begin at multiples
// of it. Sums run page by page in a span, and the spans are joined in order onto the sink: another order,
// which does not depend on batch or chunk either. So spans may be divided among CTAs without changing a bit:
// where few tiles would leave multiprocessors idle, and `scratch` has room for what the spans leave.
inline constexpr int kSpanPages = 8;
struct SpanScratch {
  float* left = nullptr;    // [floats] room for what spans leave; null: none are divided
  int floats = 0;           // size of `left`
  int rows = 0;             // the step's rows, which share the room
  int* arrivals = nullptr;  // [kMostSpanGroups], zeros between launches
};
// Spans are divided in launches of at most kMostSpanGroups times (tile, KV head, half of the tile).
inline constexpr int kMostSpanGroups = 1024;
inline constexpr int kSpanFloats = 16 << 20;
Status attend_portable(const Attention& p, const SpanScratch& scratch, cudaStream_t stream);
// Bytes of shared memory of a CTA: four pages of K and V.
constexpr int portable_shared_bytes(int head_dim, bool fp8) {
  return 4 * 2 * kPageTokens * head_dim * (fp8 ? 1 : 2) + 128;
}

}  // namespace moesaic::cuda
