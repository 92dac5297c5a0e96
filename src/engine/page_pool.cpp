#include "engine/page_pool.h"

#include "base/error.h"

namespace moesaic {

PagePool::PagePool(int pages) : pages_(pages) {
  for (int32_t p = pages - 1; p >= 0; --p) empty_.push_back(p);
}

PageUse PagePool::use() const { return {.used = pages() - free_pages(), .cached = idle_, .total = pages()}; }

void PagePool::leave_idle(int32_t page) {
  Page& p = pages_[page];
  MOESAIC_CHECK(p.holders == 0 && p.worth != Worth::kNone);
  Ends& ends = ends_of(p.worth);
  (p.before >= 0 ? pages_[p.before].after : ends.longest) = p.after;
  (p.after >= 0 ? pages_[p.after].before : ends.latest) = p.before;
  p = {};
  --idle_;
}

int32_t PagePool::take() {
  MOESAIC_CHECK(free_pages() > 0);
  if (empty_.empty()) {
    const int32_t low = ends_of(Worth::kLow).longest;
    discard(low >= 0 ? low : ends_of(Worth::kHigh).longest);
  }
  const int32_t page = empty_.back();
  empty_.pop_back();
  pages_[page].holders = 1;
  return page;
}

void PagePool::hold(int32_t page) {
  if (pages_[page].holders == 0) leave_idle(page);
  ++pages_[page].holders;
}

void PagePool::give_back(int32_t page, Worth worth) {
  MOESAIC_CHECK(page >= 0 && page < pages() && pages_[page].holders > 0);
  if (--pages_[page].holders > 0) return;
  if (worth == Worth::kNone) return empty_.push_back(page);
  Ends& ends = ends_of(worth);
  pages_[page].worth = worth, pages_[page].before = ends.latest;
  (ends.latest >= 0 ? pages_[ends.latest].after : ends.longest) = page;
  ends.latest = page;
  ++idle_;
}

void PagePool::discard(int32_t page) {
  leave_idle(page);
  empty_.push_back(page);
}

}  // namespace moesaic
