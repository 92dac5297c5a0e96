#include "engine/page_pool.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {

PagePool::PagePool(int pages) : pages_(pages), taken_(pages, false) {
  for (int32_t p = pages - 1; p >= 0; --p) free_.push_back(p);
}

int32_t PagePool::take() {
  MOESAIC_CHECK(!free_.empty());
  const int32_t page = free_.back();
  free_.pop_back();
  taken_[page] = true;
  return page;
}

void PagePool::give_back(int32_t page) {
  MOESAIC_CHECK(page >= 0 && page < pages_ && taken_[page]);
  taken_[page] = false;
  free_.push_back(page);
}

bool KvPages::reserve(PageTable& table, int first, int context, int hold) {
  const auto held = [&](int page) { return hold >= 0 && page >= reach(hold) && page < pages_of(hold); };
  for (int i = 0; i < std::min(reach(first), static_cast<int>(table.window.size())); ++i) {
    if (table.window[i] >= 0 && !held(i)) windowed_.give_back(std::exchange(table.window[i], -1));
  }
  const int lacking = std::max(0, pages_of(context) - static_cast<int>(table.full.size()));
  if (full_.free_pages() < lacking || windowed_.free_pages() < lacking) return false;
  for (int i = 0; i < lacking; ++i) {
    table.full.push_back(full_.take());
    table.window.push_back(windowed_.take());
  }
  return true;
}

void KvPages::truncate(PageTable& table, int tokens) {
  const auto kept = static_cast<size_t>(pages_of(tokens));
  for (; table.full.size() > kept; table.full.pop_back()) full_.give_back(table.full.back());
  for (; table.window.size() > kept; table.window.pop_back()) {
    if (table.window.back() >= 0) windowed_.give_back(table.window.back());
  }
}

}  // namespace moesaic
