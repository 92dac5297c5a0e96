// Who owns which page of the KV cache. Full-attention and sliding layers draw on two pools (core/batch.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/batch.h"
#include "moesaic/stats.h"
#include "moesaic/status.h"

namespace moesaic {

class PagePool {
 public:
  explicit PagePool(int pages);
  int free_pages() const { return static_cast<int>(free_.size()); }
  int pages() const { return pages_; }
  int32_t take();  // a page must be free
  void give_back(int32_t page);

 private:
  int pages_;
  std::vector<int32_t> free_;
  std::vector<bool> taken_;
};

// The page tables of one sequence.
struct PageTable {
  std::vector<int32_t> full, window;  // window: -1 where the page has left the window
};

class KvPages {
 public:
  KvPages(const KvLayout& layout, int window)
      : layout_(layout), window_(window), full_(layout.full_pages), windowed_(layout.window_pages) {}

  // Makes room for positions [0, context) of a sequence whose next step computes rows from position first on:
  // frees window pages that no such row reaches, nor a row at position `hold` (none if negative), then takes
  // the pages that lack. False, with nothing taken, if they are not there.
  bool reserve(PageTable& table, int first, int context, int hold = -1);
  // Gives back what lies behind positions [0, tokens).
  void truncate(PageTable& table, int tokens);
  void release(PageTable& table) { truncate(table, 0); }
  int free_full() const { return full_.free_pages(); }
  int free_window() const { return windowed_.free_pages(); }
  PageUse full_use() const { return {.used = full_.pages() - full_.free_pages(), .total = full_.pages()}; }
  PageUse window_use() const {
    return {.used = windowed_.pages() - windowed_.free_pages(), .total = windowed_.pages()};
  }

 private:
  int pages_of(int tokens) const { return (tokens + layout_.page_tokens - 1) / layout_.page_tokens; }
  // The first page of the window of a row at `position`.
  int reach(int position) const { return std::max(0, position - window_ + 1) / layout_.page_tokens; }

  KvLayout layout_;
  int window_;  // tokens
  PagePool full_, windowed_;
};

}  // namespace moesaic
