#include "drafting/suffix.h"

#include <gtest/gtest.h>

#include <numeric>

namespace moesaic {
namespace {

using Tokens = std::vector<int32_t>;

DraftTask ask(SuffixDrafter& drafter, uint64_t request, const Tokens& text, int most = 8) {
  DraftTask task{.request = request, .tokens = text, .most = most};
  EXPECT_TRUE(drafter.draft(std::span(&task, 1)).ok());
  return task;
}

TEST(Suffix, MostVotesWin) {
  SuffixDrafter drafter(false);
  // Behind 1 2 stands 3 twice and then 4 once, the latest.
  EXPECT_EQ(ask(drafter, 1, {1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2}, 1).draft, (Tokens{3}));
}

TEST(Suffix, EarlierAnswersAreLookedAtAndPromptsAreNot) {
  for (const bool shares : {true, false}) {
    SuffixDrafter drafter(shares);
    drafter.end(1, Tokens{50, 51, 52, 53, 10, 11, 12, 13, 14}, 4);
    EXPECT_EQ(ask(drafter, 2, {7, 10, 11}).draft, shares ? (Tokens{12, 13, 14}) : Tokens{});
    EXPECT_EQ(ask(drafter, 2, {7, 10, 11, 50, 51}).draft, Tokens{});
  }
}

TEST(Suffix, AnAnswersEndIsNoToken) {
  SuffixDrafter drafter(true);
  drafter.end(1, Tokens{10, 11, 12}, 0);
  drafter.end(2, Tokens{20, 21, 22}, 0);
  EXPECT_EQ(ask(drafter, 3, {10, 11}).draft, (Tokens{12}));
  EXPECT_EQ(ask(drafter, 3, {10, 11, 12}).draft, Tokens{});
}

TEST(Suffix, AMinorityIsOfLowGrade) {
  SuffixDrafter drafter(true);
  Tokens sought(12);
  std::iota(sought.begin(), sought.end(), 100);
  for (int32_t last = 0; last < 4; ++last) {
    Tokens answer = sought;
    answer.push_back(last);
    drafter.end(static_cast<uint64_t>(last), answer, 0);
  }
  EXPECT_EQ(ask(drafter, 9, sought).grade, 0);
  SuffixDrafter certain(true);
  Tokens answer = sought;
  answer.push_back(3);
  certain.end(1, answer, 0);
  EXPECT_EQ(ask(certain, 9, sought).grade, 2);
}

// The oldest answers go, and what is kept stays within the bound.
TEST(Suffix, ForgetsTheOldest) {
  SuffixDrafter drafter(true);
  constexpr int kLength = 4096;
  const int answers = static_cast<int>(3 * SuffixDrafter::kMostTokens / kLength);
  const auto answer = [](int i) {
    Tokens tokens(kLength);
    std::iota(tokens.begin(), tokens.end(), i * kLength);
    return tokens;
  };
  for (int i = 0; i < answers; ++i) drafter.end(static_cast<uint64_t>(i), answer(i), 0);
  const auto beginning = [&](int i) {
    const Tokens tokens = answer(i);
    return Tokens(tokens.begin(), tokens.begin() + 4);
  };
  EXPECT_TRUE(ask(drafter, 1u << 20, beginning(0)).draft.empty());
  for (const int kept : {answers - 1, answers - 60})  // one of each half
    EXPECT_EQ(ask(drafter, 1u << 21 | kept, beginning(kept)).draft.size(), 8u) << kept;
}

}  // namespace
}  // namespace moesaic
