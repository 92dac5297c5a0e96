// Counts the holders of each page of one pool. A page without holders is empty or idle; an idle page keeps
// its contents until the room is needed.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "moesaic/stats.h"

namespace moesaic {

class PagePool {
 public:
  // The state of a page without holders: it is empty, or idle; the idle page of least worth is reused
  // first.
  enum class Worth { kNone, kLow, kHigh };

  explicit PagePool(int pages);
  int pages() const { return static_cast<int>(pages_.size()); }
  int free_pages() const { return static_cast<int>(empty_.size() + idle_.size()); }
  PageUse use() const;
  int holders(int32_t page) const { return pages_[page].holders; }

  // There must be a free page. Takes an empty one; else of the idle ones of least worth the longest idle.
  int32_t take();
  // One holder more; the page may be idle.
  void hold(int32_t page);
  void give_back(int32_t page, Worth worth);
  // An idle page becomes empty.
  void discard(int32_t page);

 private:
  struct Page {
    int holders = 0;
    Worth worth = Worth::kNone;  // an idle page's
    uint64_t since = 0;          // an idle page's
  };
  using Idle = std::tuple<Worth, uint64_t, int32_t>;  // the first is taken first
  Idle idle_entry(int32_t page) const { return {pages_[page].worth, pages_[page].since, page}; }

  std::vector<Page> pages_;
  std::vector<int32_t> empty_;
  std::set<Idle> idle_;
  uint64_t now_ = 0;
};

}  // namespace moesaic
