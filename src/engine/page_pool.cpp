#include "engine/page_pool.h"

#include "base/error.h"

namespace moesaic {

PagePool::PagePool(int pages) : pages_(pages) {
  for (int32_t p = pages - 1; p >= 0; --p) empty_.push_back(p);
}

PageUse PagePool::use() const {
  return {.used = pages() - free_pages(), .cached = static_cast<int>(idle_.size()), .total = pages()};
}

int32_t PagePool::take() {
  MOESAIC_CHECK(free_pages() > 0);
  if (empty_.empty()) discard(std::get<int32_t>(*idle_.begin()));
  const int32_t page = empty_.back();
  empty_.pop_back();
  pages_[page].holders = 1;
  return page;
}

void PagePool::hold(int32_t page) {
  if (pages_[page].holders++ == 0) MOESAIC_CHECK(idle_.erase(idle_entry(page)) == 1);
}

void PagePool::give_back(int32_t page, Worth worth) {
  MOESAIC_CHECK(page >= 0 && page < pages() && pages_[page].holders > 0);
  if (--pages_[page].holders > 0) return;
  if (worth == Worth::kNone) return empty_.push_back(page);
  pages_[page].worth = worth, pages_[page].since = ++now_;
  idle_.insert(idle_entry(page));
}

void PagePool::discard(int32_t page) {
  MOESAIC_CHECK(pages_[page].holders == 0 && idle_.erase(idle_entry(page)) == 1);
  empty_.push_back(page);
}

}  // namespace moesaic
