#include "drafting/draft_state.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

using Tokens = std::vector<int32_t>;

TEST(DraftState, AProposalIsVerifiedByTheNextStep) {
  DraftState state;
  EXPECT_TRUE(state.is_free());
  Tokens tokens = {1, 2, 3};
  state.propose({4, 5, 6}, tokens.size());
  EXPECT_TRUE(state.is_free());
  EXPECT_EQ(state.proposal(3).size(), 3u);
  EXPECT_TRUE(state.proposal(4).empty()) << "other tokens came";
  EXPECT_EQ(state.unsure(), 0);
  state.launch({.sequence = 2, .token = 7}, tokens.size());
  EXPECT_FALSE(state.is_free());
  EXPECT_TRUE(state.proposal(3).empty());
  ASSERT_NE(state.token_in_flight(), nullptr);
  EXPECT_EQ(state.token_in_flight()->sequence, 2);
  EXPECT_EQ(state.token_in_flight()->token, 7);
  EXPECT_EQ(state.unsure(), 3);
  EXPECT_FALSE(state.follows_token());
  EXPECT_FALSE(state.may_continue()) << "nothing was begun behind the step";
  for (const auto& [token, accepted] : {std::pair(4, 1), {5, 2}, {9, 2}, {6, 2}}) {
    tokens.push_back(token);
    EXPECT_EQ(state.accepted(tokens), accepted);
  }
  const DraftState::Verified draft = state.take(tokens);
  EXPECT_EQ(draft.drafted, 3);
  EXPECT_EQ(draft.accepted, 2);
  EXPECT_TRUE(state.is_free());
  EXPECT_TRUE(state.proposal(3).empty());
}

TEST(DraftState, AProposalIsReplacedAndWithdrawn) {
  DraftState state;
  state.propose({4, 5}, 3);
  state.propose({6}, 3);
  EXPECT_EQ(state.proposal(3).front(), 6);
  state.propose({}, 3);
  EXPECT_TRUE(state.proposal(3).empty());
  state.propose({4, 5}, 3);
  state.withdraw_proposal();
  EXPECT_TRUE(state.proposal(3).empty());
  state.launch({.token = 0}, 3);
  state.withdraw_proposal();
  EXPECT_FALSE(state.is_free()) << "a step that runs is not withdrawn";
}

// The rows of a prompt's chunk, and those that the host samples, give the next step no token.
TEST(DraftState, RowsWithoutATokenAreInFlightAllTheSame) {
  DraftState state;
  state.launch({.sequence = 1}, 100);
  EXPECT_FALSE(state.is_free());
  EXPECT_EQ(state.token_in_flight(), nullptr);
  state.launch({.sequence = 0, .token = 3}, 100);
  EXPECT_EQ(state.token_in_flight(), nullptr) << "that of the step behind is not in flight yet";
  EXPECT_FALSE(state.follows_token());
  EXPECT_EQ(state.take(Tokens(100)).drafted, 0);
  ASSERT_NE(state.token_in_flight(), nullptr);
  EXPECT_EQ(state.token_in_flight()->token, 3);
}

TEST(DraftState, AStepGoesOnFromTheOneBefore) {
  DraftState state;
  Tokens tokens = {1, 2};
  state.launch({.token = 0}, tokens.size());
  state.begin_behind(3);
  EXPECT_TRUE(state.may_continue());
  EXPECT_EQ(state.rows_ahead(), 3);
  state.launch({.token = 0}, tokens.size());  // verifies the three, which nobody knows
  state.begin_behind(2);
  EXPECT_TRUE(state.follows_token());
  tokens.push_back(3);
  const DraftState::Verified none = state.take(tokens);
  EXPECT_EQ(none.drafted, 0);
  EXPECT_EQ(none.behind, 2) << "behind the second step";
  state.take_behind(Tokens{4, 5, -1}, tokens.size());
  EXPECT_EQ(state.unsure(), 3) << "what could not be chosen has a row all the same";
  EXPECT_EQ(state.rows_ahead(), 2);
  tokens.insert(tokens.end(), {4, 9});
  EXPECT_EQ(state.accepted(tokens), 1);
  const DraftState::Verified draft = state.take(tokens);
  EXPECT_EQ(draft.drafted, 3);
  EXPECT_EQ(draft.accepted, 1);
  EXPECT_EQ(draft.behind, 2);
  state.take_behind(Tokens{7, -1}, tokens.size());
  ASSERT_EQ(state.proposal(tokens.size()).size(), 1u) << "no step was launched with it";
  EXPECT_EQ(state.proposal(tokens.size()).front(), 7);
}

// A draft of no tokens has a place for a continuation only where an earlier draft leaves its length open.
TEST(DraftState, ADraftOfNoTokens) {
  DraftState state;
  state.launch({.token = 0}, 2);
  state.begin_behind(0);
  EXPECT_FALSE(state.may_continue());
  EXPECT_NE(state.token_in_flight(), nullptr);
  DraftState drafted;
  drafted.propose({3}, 2);
  drafted.launch({.token = 0}, 2);
  EXPECT_FALSE(drafted.may_continue());
  drafted.begin_behind(0);
  EXPECT_TRUE(drafted.may_continue());
  EXPECT_EQ(drafted.rows_ahead(), 0);
}

TEST(DraftState, WithoutItsPagesNothingGoesOn) {
  DraftState state;
  state.launch({.token = 0}, 2);
  state.begin_behind(3);
  state.forget_behind();
  EXPECT_FALSE(state.may_continue());
  EXPECT_EQ(state.rows_ahead(), 0);
  EXPECT_NE(state.token_in_flight(), nullptr) << "the token comes all the same";
  EXPECT_EQ(state.take(Tokens(3)).behind, 0);
}

TEST(DraftStateDeathTest, OnlyTwoStepsHaveRowsOfARequest) {
  DraftState state;
  state.launch({.token = 0}, 2);
  EXPECT_DEATH(state.propose({1}, 2), "is_free");
  state.launch({.token = 0}, 2);
  EXPECT_DEATH(state.launch({.token = 0}, 2), "is_free");
}

}  // namespace
}  // namespace moesaic
