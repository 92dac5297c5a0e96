#include "drafting/token_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "drafting/ngram.h"

namespace moesaic {
namespace {

std::vector<int32_t> random_text(int n, int vocab, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab));
  return tokens;
}

// By comparing every place: the longest match among the latest places whose last two tokens are the sought.
TokenIndex::Match naive(const std::vector<int32_t>& text) {
  TokenIndex::Match best;
  int places = 0;
  const int n = static_cast<int>(text.size());
  for (int end = n - 1; end >= TokenIndex::kShortest && places < TokenIndex::kMostPlaces; --end) {
    int length = 0;
    while (length < std::min(end, TokenIndex::kLongest) && text[end - 1 - length] == text[n - 1 - length])
      ++length;
    if (length < TokenIndex::kShortest) continue;
    ++places;
    if (length > best.length) best = {.end = end, .length = length};
  }
  return best;
}

TEST(TokenIndex, FindsWhatComparingEveryPlaceFinds) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<int32_t> whole = random_text(400, 12, seed);
    TokenIndex index;
    std::mt19937 rng(seed);
    for (size_t n = 1; n <= whole.size(); n += 1 + rng() % 3) {
      const std::vector<int32_t> text(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
      index.grow(text);
      std::vector<TokenIndex::Match> matches;
      index.find(text, text, matches);
      const TokenIndex::Match got = longest(matches), want = naive(text);
      // Places of other tokens with the same hash take some of the search's: then a shorter match is found.
      EXPECT_LE(got.length, want.length);
      if (want.length > 0) {
        EXPECT_GT(got.length, 0) << n;
      }
      if (got.length == want.length) {
        EXPECT_EQ(got.end, want.end);
      }
    }
  }
}

DraftTask ask(NgramDrafter& drafter, const std::vector<int32_t>& text, int most) {
  DraftTask task{.request = 1, .tokens = text, .most = most};
  EXPECT_TRUE(drafter.draft(std::span(&task, 1)).ok());
  return task;
}

TEST(Ngram, GoesOnAsTheTextDidBefore) {
  NgramDrafter drafter;
  EXPECT_EQ(ask(drafter, {7}, 4).draft, (std::vector<int32_t>{}));
  std::vector<int32_t> text = {7, 1, 2, 3, 4, 5, 6, 8, 1, 2, 3};
  const DraftTask task = ask(drafter, text, 3);
  EXPECT_EQ(task.draft, (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(task.grade, 0);
  text.insert(text.end(), {4, 5});
  EXPECT_EQ(ask(drafter, text, 2).draft, (std::vector<int32_t>{6, 8}));
  EXPECT_EQ(ask(drafter, text, 2).grade, 1);
}

TEST(Ngram, GoesOnWithAPeriod) {
  NgramDrafter drafter;
  EXPECT_EQ(ask(drafter, {9, 1, 2, 3, 1, 2, 3}, 7).draft, (std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1}));
}

TEST(Ngram, TheLongestMatchWins) {
  NgramDrafter drafter;
  // Behind 2 3 stands 5, later 6; behind 1 2 3 stands 5.
  EXPECT_EQ(ask(drafter, {1, 2, 3, 5, 8, 2, 3, 6, 1, 2, 3}, 1).draft, (std::vector<int32_t>{5}));
}

TEST(Ngram, AnEndedRequestIsForgotten) {
  NgramDrafter drafter;
  const std::vector<int32_t> text = {1, 2, 3, 1, 2};
  EXPECT_FALSE(ask(drafter, text, 1).draft.empty());
  drafter.end(1, text, 1);
  EXPECT_TRUE(ask(drafter, {1, 2}, 1).draft.empty());
}

}  // namespace
}  // namespace moesaic
