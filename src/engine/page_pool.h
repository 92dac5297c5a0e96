// Counts the holders of each page of one pool. A page without holders is empty or idle; an idle page keeps
// its contents until the room is needed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "moesaic/stats.h"

namespace moesaic {

// The constructor allocates all memory, so that no other call fails for lack of it.
class PagePool {
 public:
  // The state of a page without holders: it is empty, or idle; the idle page of least worth is reused
  // first.
  enum class Worth { kNone, kLow, kHigh };

  explicit PagePool(int pages);
  int pages() const { return static_cast<int>(pages_.size()); }
  int free_pages() const { return static_cast<int>(empty_.size()) + idle_; }
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
    Worth worth = Worth::kNone;       // an idle page's; else kNone
    int32_t before = -1, after = -1;  // idle pages of the same worth that are idle longer, and less long
  };
  struct Ends {
    int32_t longest = -1, latest = -1;
  };
  Ends& ends_of(Worth worth) { return idle_of_[static_cast<size_t>(worth)]; }
  void leave_idle(int32_t page);

  std::vector<Page> pages_;
  std::vector<int32_t> empty_;
  std::array<Ends, 3> idle_of_;  // by worth
  int idle_ = 0;
};

}  // namespace moesaic
