// Attention over a caller's KV cache: pages of 16, 32 or 64 tokens in rows of head_dim values, by HND (a KV
// head's tokens lie together) or NHD (a token's KV heads do), as strides say. The sums are those of
// attend_portable(), bit for bit, whatever the layout.
#pragma once

#include "backend/cuda/kernels/common/attention.h"

namespace moesaic::cuda {

// How K lies in memory, and V: Attention::k and v point to them. Strides are in bytes, multiples of 16; the
// values of one token and head lie together.
struct PagedLayout {
  int64_t page_stride = 0, token_stride = 0, head_stride = 0;
  int page_tokens = 0;  // a power of two
  int pages = 0;
};

// All on the device. The sequences' rows stand one behind another, and are the last tokens of each.
struct PagedRows {
  int rows = 0, sequences = 0;
  const int32_t* starts = nullptr;   // [sequences + 1]: the first row of each, and the end
  const int32_t* lengths = nullptr;  // [sequences] tokens that the cache has, the rows' own included
  int64_t table_stride = 0;          // entries from a sequence's page table to the next one's
  int table_pages = 0;               // entries of a page table
  int page_tokens = 0;
};

// Tiles of at most `tile_tokens` rows. Some are of no row.
constexpr int paged_tiles(int rows, int sequences, int tile_tokens) { return rows / tile_tokens + sequences; }
// tiles: [paged_tiles()]. cleared: [kMostSpanGroups] or null, which becomes zeros. A sequence whose length is
// less than its rows or more than its page table holds, or whose rows are not all among the call's, gets
// tiles whose rows will be NaN.
Status make_row_tiles(const PagedRows& p, int tile_tokens, RowTile* tiles, int* cleared, cudaStream_t stream);

// p.tiles are of make_row_tiles(). p.sinks null: none. Nothing is read of pages that no row attends to. Rows
// that attend to a page whose number is not one of the cache's are NaN, and so may be others of their tile.
Status attend_paged(const Attention& p, const PagedLayout& layout, const SpanScratch& scratch,
                    cudaStream_t stream);

}  // namespace moesaic::cuda
