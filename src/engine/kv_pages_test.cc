// The pages of sequences and the prefix cache, without an engine.
#include "engine/kv_pages.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "backend/host_kv_copier.h"
#include "backend/idle_backend.h"

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

// ---- with a store ----

// Each page of its cache, of one full and one sliding layer, holds a number.
class NumberedPages : public IdleBackend {
 public:
  std::string kv_page_format() const override { return "a number"; }
  size_t kv_page_bytes() const override { return sizeof(int32_t); }
  std::unique_ptr<KvCopier> kv_copier() override { return std::make_unique<HostKvCopier>(*this); }
  Status read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    std::ranges::copy(std::as_bytes(std::span(&numbers_[{layer, page}], 1)), bytes.begin());
    return {};
  }
  Status write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(&numbers_[{layer, page}], 1)).begin());
    return {};
  }
  int32_t number(int layer, int32_t page) {
    const std::lock_guard lock(mutex_);
    return numbers_[{layer, page}];
  }
  void set_number(int layer, int32_t page, int32_t value) {
    const std::lock_guard lock(mutex_);
    numbers_[{layer, page}] = value;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int32_t>, int32_t> numbers_;
};

// Twelve full pages and ten of the window. Block i of a text holds 10 + i in its full page, 50 + i in that of
// the window.
class StoredPages : public testing::Test {
 protected:
  StoredPages() {
    auto tiers = KvTiers::open({.host_bytes = 1 << 20});
    ModelConfig config;
    config.layers = 2, config.sliding = {false, true};
    const KvLayout layout{.page_tokens = kBlockTokens, .full_pages = 12, .window_pages = 10};
    auto store = KvStore::open(std::move(tiers).value(), backend_, config, layout, 1);
    EXPECT_TRUE(store.ok()) << store.status().message();
    store_ = std::move(store).value();
    pages_.keep(store_.get());
  }
  // Computes the text of 18 tokens; what it leaves is in the store. slides: the windows at its end alone.
  void compute(bool slides = false) {
    PageTable table;
    ASSERT_TRUE(pages_.reserve(table, 0, kText));
    for (int i = 0; i < kBlocks; ++i) {
      backend_.set_number(0, table.full[i], 10 + i);
      backend_.set_number(1, table.window[i], 50 + i);
    }
    pages_.cache_blocks(table, text_);
    table.forks.push_back(kText);
    pages_.offer(table, kText);
    if (slides) pages_.slide(table, kText);
    pages_.release(table);
    store_->settle();
  }
  void evict() {
    PageTable other;
    ASSERT_TRUE(pages_.reserve(other, 0, 10 * kBlockTokens) && pages_.extend(other, 12 * kBlockTokens, 0));
    pages_.release(other);
    ASSERT_EQ(adopted(pages_, text_), 0);
  }
  // Returns the places of a fetch as numbers: the page of block i is 10 + i or 50 + i. Empties the places.
  std::set<int> numbers(const PageTable& table, const std::vector<KvPlace>& places) {
    std::set<int> found;
    std::map<int64_t, Hash128> names;  // the blocks'
    for (const KvPlace& place : places) {
      const bool full = place.part.id.kind == KvKind::kFull;
      const auto& list = full ? table.full : table.window;
      const auto block = std::ranges::find(list, place.page) - list.begin();
      EXPECT_LT(block, std::ssize(list));
      names[block] = place.part.id.block;
      if (names.contains(block - 1)) {
        EXPECT_EQ(place.part.before, names[block - 1]);
      }
      EXPECT_TRUE(found.insert(static_cast<int>(block) + (full ? 10 : 50)).second);
      backend_.set_number(full ? 0 : 1, place.page, -1);
    }
    return found;
  }
  void fetch(PageTable& table, std::vector<KvPlace> places) {
    auto fetch = std::make_shared<KvFetch>(std::move(places));
    store_->begin(fetch);
    while (store_->state(*fetch, 0) == KvFetch::State::kBegun) store_->wait();
    ASSERT_EQ(store_->state(*fetch, 0), KvFetch::State::kArrived);
    EXPECT_EQ(pages_.fetched(table, text_), kBlocks * kBlockTokens);
    pages_.check(std::vector<const PageTable*>{&table});
    for (int i = 0; i < kBlocks; ++i) {
      EXPECT_EQ(backend_.number(0, table.full[i]), 10 + i);
      if (i >= pages_.reach(kBlocks * kBlockTokens)) {
        EXPECT_EQ(backend_.number(1, table.window[i]), 50 + i);
      }
    }
  }

  static constexpr int kText = 18, kBlocks = 4;
  const std::vector<int32_t> text_ = count_up(kText);
  NumberedPages backend_;
  KvPages pages_ = small_pages(12, 10);
  std::unique_ptr<KvStore> store_;
};

TEST_F(StoredPages, AllComesBack) {
  compute();
  PageTable table;
  EXPECT_TRUE(pages_.adopt_stored(table, text_, 0).empty());  // the cache has as much
  EXPECT_TRUE(table.full.empty() && table.window.empty() && table.forks.empty());
  evict();
  EXPECT_TRUE(pages_.adopt_stored(table, text_, 8).empty());  // five pages and eight spare ones
  EXPECT_TRUE(table.full.empty());
  std::vector<KvPlace> places = pages_.adopt_stored(table, text_, 7);
  EXPECT_EQ(numbers(table, places), (std::set{10, 11, 12, 13, 51, 52, 53}));
  EXPECT_EQ(table.full.size(), 5u);  // room for the last tokens, too
  EXPECT_EQ(table.window.size(), 4u);
  EXPECT_EQ(table.window[0], -1);
  EXPECT_EQ(table.cached_blocks, 0);
  EXPECT_EQ(table.forks, std::vector{16});
  fetch(table, std::move(places));
  EXPECT_EQ(table.cached_blocks, kBlocks);
  pages_.release(table);
  EXPECT_EQ(adopted(pages_, text_), 16);
}

TEST_F(StoredPages, WhatTheCacheHasIsNotFetched) {
  compute();
  evict();
  PageTable held;
  const std::vector<int32_t> begins(text_.begin(), text_.begin() + 9);
  ASSERT_TRUE(pages_.reserve(held, 0, 9));
  for (int i = 0; i < 2; ++i) {
    backend_.set_number(0, held.full[i], 10 + i);
    backend_.set_number(1, held.window[i], 50 + i);
  }
  pages_.cache_blocks(held, begins);
  PageTable table;
  std::vector<KvPlace> places = pages_.adopt_stored(table, text_, 0);
  EXPECT_EQ(numbers(table, places), (std::set{12, 13, 52, 53}));
  EXPECT_EQ(table.full[0], held.full[0]);
  EXPECT_EQ(table.full[1], held.full[1]);
  EXPECT_EQ(table.window[1], held.window[1]);
  EXPECT_EQ(table.cached_blocks, 2);
  pages_.check(std::vector<const PageTable*>{&held, &table});
  pages_.release(held);
  fetch(table, std::move(places));
  pages_.release(table);
  EXPECT_EQ(adopted(pages_, text_), 16);
}

// The sliding layers' pages of a cached block have gone: they alone come back, and the block has them again.
TEST_F(StoredPages, AWindowAloneComesBack) {
  compute();
  PageTable other;  // takes all window pages
  for (int n = 1; n <= 8; ++n) ASSERT_TRUE(pages_.reserve(other, 0, n * kBlockTokens) || n > 7) << n;
  while (pages_.window_use().cached > 0) {
    PageTable more;
    ASSERT_TRUE(pages_.reserve(more, 0, kBlockTokens));
    other.full.insert(other.full.end(), more.full.begin(), more.full.end());
    other.window.insert(other.window.end(), more.window.begin(), more.window.end());
  }
  pages_.release(other);
  ASSERT_EQ(adopted(pages_, text_), 0);
  PageTable table;
  std::vector<KvPlace> places = pages_.adopt_stored(table, text_, 0);
  EXPECT_TRUE(numbers(table, places).contains(51));
  EXPECT_TRUE(numbers(table, places).contains(53));
  fetch(table, std::move(places));
  pages_.release(table);
  EXPECT_EQ(adopted(pages_, text_), 16);
}

// Blocks of another salt are not its own, and the last token of a text is left to compute.
TEST_F(StoredPages, OnlyWhatIsTheSameIsFound) {
  compute();
  evict();
  PageTable salted{.salt = "other"};
  EXPECT_TRUE(pages_.adopt_stored(salted, text_, 0).empty());
  std::vector<int32_t> departs = text_;
  departs[9] = 99;
  PageTable table;
  EXPECT_EQ(numbers(table, pages_.adopt_stored(table, departs, 0)), (std::set{10, 11, 50, 51}));
  pages_.release(table);
  const std::vector<int32_t> exact(text_.begin(), text_.begin() + 16);
  EXPECT_EQ(numbers(table, pages_.adopt_stored(table, exact, 0)), (std::set{10, 11, 12, 50, 51, 52}));
  pages_.release(table);
  pages_.check({});
}

// A text that departs before them has no window there, so nothing of the blocks is of use.
TEST_F(StoredPages, WithoutItsWindowABlockIsNotFetched) {
  compute(true);
  evict();
  std::vector<int32_t> departs = text_;
  departs[13] = 99;
  PageTable table;
  EXPECT_TRUE(pages_.adopt_stored(table, departs, 0).empty());
  EXPECT_EQ(numbers(table, pages_.adopt_stored(table, text_, 0)), (std::set{10, 11, 12, 13, 51, 52, 53}));
  pages_.release(table);
}

}  // namespace
}  // namespace moesaic
