// The pages of sequences and the prefix cache, without an engine.
#include "engine/kv_pages.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <string>

namespace moesaic {
namespace {

constexpr int kBlockTokens = 4, kReachTokens = 10;
using enum PagePool::Worth;

std::vector<int32_t> count_up(int tokens, int32_t first = 0) {
  std::vector<int32_t> result(static_cast<size_t>(tokens));
  std::iota(result.begin(), result.end(), first);
  return result;
}

// Pages of 4 tokens, a window of 10.
KvPages small_pages(int full, int window) {
  return KvPages({.page_tokens = kBlockTokens, .full_pages = full, .window_pages = window}, kReachTokens);
}

// A sequence that computes all of `tokens` and ends.
void serve_once(KvPages& pages, const std::vector<int32_t>& tokens, const std::string& salt = "") {
  PageTable table{.salt = salt};
  const int begin = pages.adopt(table, tokens);
  const auto size = static_cast<int>(tokens.size());
  ASSERT_TRUE(pages.reserve(table, begin, size));
  pages.cache_blocks(table, tokens);
  table.forks.push_back(size);
  pages.slide(table, size);
  pages.release(table);
  pages.check({});
}

// How much of `tokens` is in the cache.
int adopted(KvPages& pages, const std::vector<int32_t>& tokens, const std::string& salt = "") {
  PageTable table{.salt = salt};
  const int length = pages.adopt(table, tokens);
  EXPECT_EQ(static_cast<int>(table.full.size()) * kBlockTokens, length);
  EXPECT_EQ(table.cached_blocks * kBlockTokens, length);
  pages.check(std::vector<const PageTable*>{&table});
  pages.release(table);
  return length;
}

TEST(PagePool, TakesEmptyPagesThenTheLeastWorthThenTheLongestIdle) {
  PagePool pool(4);
  for (int32_t page = 0; page < 4; ++page) EXPECT_EQ(pool.take(), page);
  EXPECT_EQ(pool.use().used, 4);
  pool.give_back(3, kHigh), pool.give_back(1, kLow), pool.give_back(0, kLow), pool.give_back(2, kNone);
  EXPECT_EQ(pool.use().cached, 3);
  EXPECT_EQ(pool.free_pages(), 4);
  for (const int32_t page : {2, 1, 0, 3}) EXPECT_EQ(pool.take(), page);
  EXPECT_EQ(pool.free_pages(), 0);
}

TEST(PagePool, APageIsFreeWhenNobodyHoldsIt) {
  PagePool pool(2);
  const int32_t page = pool.take();
  pool.hold(page);
  EXPECT_EQ(pool.holders(page), 2);
  pool.give_back(page, kLow);
  EXPECT_EQ(pool.use().used, 1);
  pool.give_back(page, kLow);
  EXPECT_EQ(pool.use().cached, 1);
  pool.hold(page);  // an idle one
  EXPECT_EQ(pool.use().cached, 0);
  pool.give_back(page, kHigh);
  pool.discard(page);
  EXPECT_EQ(pool.use().used + pool.use().cached, 0);
}

TEST(KvPages, WindowPagesAreReusedAndNothingLeaks) {
  KvPages pages({.page_tokens = 32, .full_pages = 40, .window_pages = 8}, 128);
  PageTable table;
  for (int n = 1; n <= 1200; ++n) ASSERT_TRUE(pages.reserve(table, n - 1, n)) << n;
  pages.check(std::vector<const PageTable*>{&table});
  std::set<int32_t> live;
  for (const int32_t p : table.window) {
    if (p >= 0) {
      EXPECT_TRUE(live.insert(p).second);
    }
  }
  EXPECT_LE(live.size(), 5u);
  EXPECT_FALSE(pages.reserve(table, 1200, 2000));  // 63 pages of 40
  pages.release(table);
  EXPECT_EQ(pages.full_use().used, 0);
  EXPECT_EQ(pages.window_use().used, 0);
}

// A row's window: itself and the nine positions before it.
TEST(KvPages, ReachIsTheFirstPageOfTheWindow) {
  const KvPages pages = small_pages(4, 4);
  EXPECT_EQ(pages.reach(0), 0);
  EXPECT_EQ(pages.reach(12), 0);  // from position 3 on
  EXPECT_EQ(pages.reach(13), 1);  // from 4 on
  EXPECT_EQ(pages.reach(17), 2);
  EXPECT_EQ(pages.shareable(7), 4);
  EXPECT_EQ(pages.shareable(8), 8);
}

TEST(KvPages, APromptIsFoundButForItsLastToken) {
  KvPages pages = small_pages(20, 20);
  serve_once(pages, count_up(18));
  EXPECT_EQ(adopted(pages, count_up(30)), 16);
  EXPECT_EQ(adopted(pages, count_up(17)), 16);
  EXPECT_EQ(adopted(pages, count_up(16)), 12);
  EXPECT_EQ(adopted(pages, count_up(18, 1)), 0);
  std::vector<int32_t> departs = count_up(18);
  departs[15] = 99;
  EXPECT_EQ(adopted(pages, departs), 12);
  EXPECT_EQ(adopted(pages, count_up(18), "other"), 0);
  serve_once(pages, count_up(18), "other");
  EXPECT_EQ(adopted(pages, count_up(18), "other"), 16);
  pages.forget();
  EXPECT_EQ(adopted(pages, count_up(18)), 0);
  EXPECT_EQ(pages.full_use().cached + pages.window_use().cached, 0);
  pages.check({});
}

// Two that compute the same text at the same time have one page for each block in the end.
TEST(KvPages, TheSameBlocksAreKeptOnce) {
  KvPages pages = small_pages(20, 20);
  PageTable first, second;
  for (PageTable* table : {&first, &second}) {
    EXPECT_EQ(pages.adopt(*table, count_up(13)), 0);
    ASSERT_TRUE(pages.reserve(*table, 0, 13));
  }
  for (PageTable* table : {&first, &second}) {
    pages.cache_blocks(*table, count_up(13));
    EXPECT_EQ(table->cached_blocks, 3);
  }
  for (int block = 0; block < 3; ++block) {
    EXPECT_EQ(first.full[block], second.full[block]);
    EXPECT_EQ(first.window[block], second.window[block]);
  }
  EXPECT_NE(first.full[3], second.full[3]);
  EXPECT_EQ(pages.full_use().used, 5);
  EXPECT_EQ(pages.window_use().used, 5);
  pages.check(std::vector<const PageTable*>{&first, &second});
  pages.release(first);
  EXPECT_EQ(pages.full_use().used, 4);
  pages.release(second);
  pages.check({});
}

TEST(KvPages, ALackOfPagesTakesNothing) {
  KvPages pages = small_pages(5, 3);
  PageTable table;
  EXPECT_FALSE(pages.reserve(table, 0, 13));  // four window pages of three
  EXPECT_TRUE(table.full.empty());
  EXPECT_TRUE(pages.reserve(table, 0, 12, 2));
  EXPECT_FALSE(pages.extend(table, 16, 2));
  EXPECT_EQ(table.full.size(), 3u);
  EXPECT_TRUE(pages.extend(table, 16, 1));
  EXPECT_EQ(table.full.size(), 4u);
  pages.trim(table, 9);
  EXPECT_EQ(table.full.size(), 3u);
  pages.trim(table, 8);
  EXPECT_EQ(table.full.size(), 2u);
  EXPECT_EQ(table.window.size(), 2u);
  EXPECT_EQ(pages.full_use().used, 2);
  pages.check(std::vector<const PageTable*>{&table});
}

TEST(KvPages, RoomForWhatIsComputedElsewhere) {
  KvPages pages = small_pages(8, 4);
  PageTable table{.salt = "a"};
  EXPECT_FALSE(pages.reserve_computed(table, 36));
  EXPECT_TRUE(table.full.empty() && table.window.empty());
  EXPECT_EQ(table.salt, "a");
  ASSERT_TRUE(pages.reserve_computed(table, 24));
  EXPECT_EQ(table.full.size(), 6u);
  for (int page = 0; page < 6; ++page) EXPECT_EQ(table.window[page] >= 0, page >= pages.reach(24)) << page;
  pages.check(std::vector<const PageTable*>{&table});
}

// would_fit() says what adopt() and extend() then do, whoever yields: on a copy of pages in any state.
TEST(KvPages, WouldFitKnowsWhatFits) {
  std::mt19937 random(1);
  const auto some_text = [&] {
    std::vector<int32_t> tokens =
        count_up(1 + static_cast<int>(random() % 40), 100 * static_cast<int>(random() % 3));
    if (random() % 3 == 0) tokens.back() = 7;
    return tokens;
  };
  int fitted = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    KvPages pages = small_pages(16, 40);
    for (int i = 0; i < 3; ++i) {
      const std::vector<int32_t> tokens = some_text();
      if (tokens.size() <= 30) serve_once(pages, tokens);
    }
    std::vector<PageTable> held(3);
    for (PageTable& table : held) {
      const std::vector<int32_t> tokens = some_text();
      const int begin = pages.adopt(table, tokens);
      if (!pages.reserve(table, begin, static_cast<int>(tokens.size()))) {
        pages.release(table);
        continue;
      }
      pages.cache_blocks(table, tokens);
    }
    const size_t yields = random() % 3;
    std::vector<const PageTable*> yielding;
    for (size_t i = 0; i < yields; ++i) yielding.push_back(&held[i]);
    const std::vector<int32_t> tokens = some_text();
    const bool reuse = random() % 2 == 0;
    const int spare = static_cast<int>(random() % 4);
    const bool said = pages.would_fit({}, tokens, reuse, yielding, spare);
    for (size_t i = 0; i < yields; ++i) pages.release(held[i]);
    PageTable table;
    if (reuse) pages.adopt(table, tokens);
    ASSERT_EQ(said, pages.extend(table, static_cast<int>(tokens.size()), spare)) << round;
    (said ? fitted : refused) += 1;
  }
  EXPECT_GT(fitted, 300);
  EXPECT_GT(refused, 300);
}

// The window before the place where a prompt departs from cached ones is worth keeping.
TEST(KvPages, APromptForksWhereItDeparts) {
  KvPages pages = small_pages(20, 20);
  serve_once(pages, count_up(18));
  std::vector<int32_t> departs = count_up(18);
  departs[13] = 99;
  PageTable table;
  EXPECT_EQ(pages.adopt(table, departs), 12);
  EXPECT_EQ(table.forks, std::vector{12});
  pages.release(table);
}

// A sequence that computes a cached block anew takes no window page that its own window has left.
TEST(KvPages, ABlockThatLeftTheWindowGetsNoWindowPage) {
  KvPages pages = small_pages(20, 20);
  PageTable first, second;
  for (PageTable* table : {&first, &second}) ASSERT_TRUE(pages.reserve(*table, 0, 16));
  pages.cache_blocks(first, count_up(16));
  pages.slide(second, 25);  // rows from 25 on reach back to block 4
  pages.cache_blocks(second, count_up(16));
  EXPECT_EQ(second.full, first.full);
  EXPECT_EQ(second.window, (std::vector{-1, -1, -1, -1}));
  pages.check(std::vector<const PageTable*>{&first, &second});
}

TEST(KvPages, AnEvictedBlockLosesItsWindowPage) {
  KvPages pages = small_pages(4, 8);
  serve_once(pages, count_up(9));
  EXPECT_EQ(pages.window_use().cached, 2);
  PageTable table;
  ASSERT_TRUE(pages.extend(table, 16, 0));
  EXPECT_EQ(pages.window_use().cached, 0);
  pages.check(std::vector<const PageTable*>{&table});
}

// Pages that sequences hold stay theirs when the cache is forgotten.
TEST(KvPages, ForgettingTakesNoPageThatIsHeld) {
  KvPages pages = small_pages(8, 8);
  PageTable held;
  ASSERT_TRUE(pages.reserve(held, 0, 16));
  pages.cache_blocks(held, count_up(16));
  const PageTable before = held;
  pages.forget();
  held.cached_blocks = 0;
  EXPECT_EQ(pages.full_use().used, 4);
  EXPECT_EQ(pages.window_use().used, 4);
  PageTable other;
  ASSERT_TRUE(pages.reserve(other, 0, 16));
  EXPECT_FALSE(pages.extend(other, 17, 0));
  EXPECT_EQ(held.full, before.full);
  pages.check(std::vector<const PageTable*>{&held, &other});
}

// Where two prompts part, the window before that place is worth more than what is older.
TEST(KvPages, WindowsAtForksGoLast) {
  KvPages pages = small_pages(40, 14);
  PageTable table;
  ASSERT_EQ(pages.adopt(table, count_up(20)), 0);
  table.forks = {20};
  for (int n = 1; n <= 40; ++n) {
    ASSERT_TRUE(pages.reserve(table, n - 1, n));
    pages.cache_blocks(table, count_up(n));
  }
  pages.release(table);
  const int before = pages.window_use().cached;
  EXPECT_GT(before, 3);
  PageTable other;  // takes all window pages but those of the fork and of the end
  ASSERT_TRUE(pages.reserve(other, 0, 4 * (14 - 6)));
  pages.release(other);
  EXPECT_EQ(adopted(pages, count_up(21)), 20);
  EXPECT_EQ(adopted(pages, count_up(41)), 40);
}

TEST(KvPages, AWatcherHearsOfEachBlock) {
  KvPages pages = small_pages(4, 8);
  std::vector<KvEvent::Kind> heard;
  pages.watch([&](const KvEvent& event) { heard.push_back(event.kind); });
  using enum KvEvent::Kind;
  serve_once(pages, count_up(9));
  EXPECT_EQ(heard, (std::vector{kStored, kStored}));
  heard.clear();
  serve_once(pages, count_up(9));
  EXPECT_TRUE(heard.empty());
  serve_once(pages, count_up(13, 50));  // three blocks and a page: the last blocks of the others go
  EXPECT_EQ(std::ranges::count(heard, kRemoved), 2);
  EXPECT_EQ(std::ranges::count(heard, kStored), 3);
  heard.clear();
  pages.forget();
  EXPECT_EQ(heard, std::vector{kCleared});
}

}  // namespace
}  // namespace moesaic
