// Events of KvPages about its cached blocks: whoever follows them knows exactly what is cached.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "engine/kv_pages.h"
#include "engine/late_backend.h"

namespace moesaic {
namespace {

constexpr int kPages = 8, kWindow = 128;

// A follower that refuses what contradicts what it was told before.
struct Follower {
  std::map<uint64_t, std::vector<int32_t>> blocks;  // hash -> the tokens of the block and of all before it
  int cleared = 0;

  void operator()(const KvEvent& event) {
    if (event.kind == KvEvent::Kind::kCleared) {
      ++cleared;
      blocks.clear();
    } else if (event.kind == KvEvent::Kind::kRemoved) {
      EXPECT_EQ(blocks.erase(event.hash), 1U);
    } else {
      EXPECT_EQ(event.tokens.size(), static_cast<size_t>(kPageTokens));
      std::vector<int32_t> tokens;
      if (event.parent) tokens = blocks.at(*event.parent);
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      EXPECT_TRUE(blocks.emplace(event.hash, tokens).second);
    }
  }
  bool knows(const std::vector<int32_t>& tokens) const {
    return std::any_of(blocks.begin(), blocks.end(), [&](const auto& b) { return b.second == tokens; });
  }
};

std::vector<int32_t> counting(int first, int count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Computes a sequence as the scheduler would, and ends it.
void compute(KvPages& pages, const std::vector<int32_t>& tokens) {
  PageTable table;
  const int cached = pages.adopt(table, tokens);
  ASSERT_TRUE(pages.reserve(table, cached, static_cast<int>(tokens.size())));
  pages.cache_blocks(table, tokens);
  pages.release(table);
}

TEST(KvEvents, AFollowerKnowsWhatIsCached) {
  KvPages pages({.page_tokens = kPageTokens, .full_pages = kPages, .window_pages = kPages}, kWindow);
  Follower follower;
  pages.watch(std::ref(follower));
  compute(pages, counting(0, 3 * kPageTokens + 5));
  EXPECT_EQ(follower.blocks.size(), 3U);
  EXPECT_TRUE(follower.knows(counting(0, kPageTokens)) && follower.knows(counting(0, 3 * kPageTokens)));
  compute(pages, counting(0, 3 * kPageTokens + 9));  // nothing new
  EXPECT_EQ(follower.blocks.size(), 3U);
  // Where sequences of others take the room, blocks go, and a block goes before the one that it follows.
  for (int i = 1; i < 20; ++i) {
    compute(pages, counting(1000 * i, (1 + i % 5) * kPageTokens + 1));
    EXPECT_EQ(static_cast<int>(follower.blocks.size()), pages.full_use().cached);
    for (const auto& [hash, tokens] : follower.blocks) {
      const std::vector<int32_t> before(tokens.begin(), tokens.end() - kPageTokens);
      EXPECT_TRUE(before.empty() || follower.knows(before));
    }
  }
  EXPECT_FALSE(follower.knows(counting(0, 3 * kPageTokens)));
  pages.forget();
  EXPECT_EQ(follower.cleared, 1);
  EXPECT_EQ(pages.full_use().cached, 0);
}

// It must not throw. If it does, that ends a step and not the process, whichever event it is.
TEST(KvEvents, AWatcherThatThrowsLeavesThePagesConsistent) {
  std::array<int, 3> thrown{};
  for (int at = 1; at < 60; ++at) {
    Harness run(at % 2 == 0, {.context = 400, .max_batch = 2, .max_rows = 64, .kv_tokens = 400});
    int events = 0;
    run.engine.kv_state(1).pages->watch([&](const KvEvent& event) {
      if (++events % at != 0) return;
      ++thrown[static_cast<size_t>(event.kind)];
      throw std::runtime_error("a watcher");
    });
    for (int i = 0; i < 6; ++i) run.submit(60 + 40 * i, {.max_tokens = 50});
    for (int steps = 0; !run.engine.idle(); ++steps) {
      try {
        ASSERT_TRUE(run.engine.step().ok());
      } catch (const std::runtime_error&) {
      }
      run.engine.scheduler().check();
      ASSERT_LT(steps, 5000);
    }
    for (const auto& r : run.requests) EXPECT_TRUE(r->done());
    EXPECT_EQ(run.engine.scheduler().stats().full.used, 0) << at;
  }
  for (const int of_kind : thrown) EXPECT_GT(of_kind, 0);
}

}  // namespace
}  // namespace moesaic
