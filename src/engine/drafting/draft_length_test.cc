#include "drafting/draft_length.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "drafting/acceptance.h"

namespace moesaic {
namespace {

StepCosts costs(const std::vector<std::pair<int, double>>& seconds) {
  StepCosts c;
  for (int i = 0; i < 50; ++i) {
    for (const auto& [rows, s] : seconds) c.add(rows, s);
  }
  return c;
}

// ---- step costs ----

TEST(StepCosts, NothingIsKnownAtFirst) {
  EXPECT_EQ(StepCosts().seconds(1), 0);
  EXPECT_EQ(StepCosts().seconds(300), 0);
}

TEST(StepCosts, NoRowsTakeNoTime) {
  const StepCosts c = costs({{1, 1e-3}});
  EXPECT_EQ(c.seconds(0), 0);
  EXPECT_EQ(c.seconds(-1), 0);
  EXPECT_FALSE(c.knows(0));
}

TEST(StepCosts, MeasuredSizesAreAsMeasuredAndOthersBetween) {
  const StepCosts c = costs({{1, 1e-3}, {4, 2e-3}, {8, 2.8e-3}});
  EXPECT_NEAR(c.seconds(1), 1e-3, 1e-5);
  EXPECT_NEAR(c.seconds(4), 2e-3, 2e-5);
  EXPECT_NEAR(c.seconds(2), 1e-3 + 1e-3 / 3, 2e-5);
  EXPECT_NEAR(c.seconds(6), 2.4e-3, 2e-5);
  EXPECT_NEAR(c.seconds(15), 2.8e-3 + 7 * 1.8e-3 / 7, 1e-4);  // on along the line from the least to the most
}

TEST(StepCosts, OneSizeAloneGrowsByAFifthOfARowForEach) {
  EXPECT_NEAR(costs({{1, 1e-3}}).seconds(6), 2e-3, 1e-5);
  EXPECT_NEAR(costs({{10, 1e-3}}).seconds(15), 1e-3 * (1 + 0.2 * 0.5), 1e-5);
}

// Above 16 rows several numbers share a size: a row more still costs what rows cost.
TEST(StepCosts, ARowMoreIsNotForNothing) {
  const StepCosts alone = costs({{32, 4e-3}});
  EXPECT_NEAR(alone.seconds(34) - alone.seconds(32), 2 * 0.2 * 4e-3 / 32, 1e-6);
  const StepCosts c = costs({{16, 2e-3}, {32, 4e-3}, {48, 6e-3}});
  EXPECT_NEAR(c.seconds(33) - c.seconds(32), 1.25e-4, 1e-6);
  EXPECT_NEAR(c.seconds(34) - c.seconds(32), 2.5e-4, 1e-6);
  EXPECT_NEAR(c.seconds(50) - c.seconds(48), 2.5e-4, 1e-6);
  const StepCosts curved = costs({{16, 2e-3}, {32, 4e-3}, {48, 8e-3}});
  EXPECT_NEAR(curved.seconds(33) - curved.seconds(32), 6e-3 / 32, 1e-6);  // as between the sizes around it
}

TEST(StepCosts, ASizeStandsForTheMeanOfItsRows) {
  StepCosts c;
  for (int i = 0; i < 10; ++i) {
    for (const auto& [rows, s] : {std::pair(8, 2e-3), {18, 3e-3}, {19, 3e-3}, {32, 6e-3}}) c.add(rows, s);
  }
  EXPECT_NEAR((c.seconds(18) + c.seconds(19)) / 2, 3e-3, 1e-6);
  EXPECT_NEAR(c.seconds(19) - c.seconds(18), 4e-3 / 24, 1e-6);
}

TEST(StepCosts, OneBadMeasurementDoesNotRuleASizeOut) {
  StepCosts c = costs({{1, 1e-3}});
  c.add(4, 1);
  EXPECT_NEAR(c.seconds(4), 1.6e-3, 1e-5);
  StepCosts d = costs({{1, 1e-3}, {4, 2e-3}});
  d.add(4, 1);
  EXPECT_LT(d.seconds(4), 2.5e-3);
  EXPECT_LT(d.seconds(1), 1.2e-3);
}

TEST(StepCosts, WhatIsOldIsTriedAgain) {
  StepCosts c = costs({{1, 1e-3}, {4, 5e-3}});
  EXPECT_NEAR(c.seconds(4), 5e-3, 1e-4);
  for (int i = 0; i < 600; ++i) c.add(1, 1e-3);
  EXPECT_NEAR(c.seconds(4), 1.6e-3, 1e-4);
  c.add(4, 5e-3);
  EXPECT_NEAR(c.seconds(4), 5e-3, 1e-4);  // it was right
  for (int i = 0; i < 600; ++i) c.add(1, 1e-3);
  for (int i = 0; i < 8; ++i) c.add(4, 2e-3);
  EXPECT_LT(c.seconds(4), 2.6e-3);  // it is no longer
}

// All sizes get slower by half while only one of them is measured.
TEST(StepCosts, TheMachinesPaceIsCommon) {
  StepCosts c = costs({{1, 1e-3}, {4, 2e-3}});
  for (int i = 0; i < 30; ++i) c.add(4, 3e-3);
  EXPECT_NEAR(c.seconds(4), 3e-3, 1e-4);
  EXPECT_GT(c.seconds(1), 1.2e-3);
}

TEST(StepCosts, NoiseAveragesOut) {
  StepCosts c;
  std::mt19937 rng(4);
  std::lognormal_distribution<double> noise(0, 0.3);
  for (int i = 0; i < 400; ++i) c.add(1, 1e-3 * noise(rng)), c.add(4, 1.8e-3 * noise(rng));
  EXPECT_NEAR(c.seconds(4) / c.seconds(1), 1.8, 0.25);
}

// ---- acceptance ----

TEST(Acceptance, FollowsWhatIsSeen) {
  Acceptance a;
  const double before = a.reach(2, 1)[0];
  for (int i = 0; i < 40; ++i) a.add(2, 0, true), a.add(2, 1, i % 2 == 0);
  EXPECT_GT(a.reach(2, 1)[0], 0.95);
  EXPECT_GT(a.reach(2, 1)[0], before);
  EXPECT_NEAR(a.reach(2, 2)[1] / a.reach(2, 2)[0], 0.5, 0.1);
  EXPECT_NEAR(a.reach(2, 3)[2], a.reach(2, 2)[1] * 0.5, 0.1);  // never seen: as the one before
  EXPECT_LT(a.reach(0, 1)[0], 0.5);                            // other grades are by themselves
}

TEST(Acceptance, ANewRequestLearnsQuickly) {
  Acceptance all;
  for (int i = 0; i < 1000; ++i) all.add(0, 0, false);
  Acceptance a = all.as_prior();
  EXPECT_LT(a.reach(0, 1)[0], 0.01);
  for (int i = 0; i < 6; ++i) a.add(0, 0, true);
  EXPECT_GT(a.reach(0, 1)[0], 0.5);
}

// ---- the choice ----

std::vector<double> falling(double p, int n) {
  std::vector<double> reach;
  for (int i = 1; i <= n; ++i) reach.push_back(std::pow(p, i));
  return reach;
}

std::vector<int> choose(const StepCosts& c, int rows, int free, const std::vector<std::vector<double>>& reach,
                        double token_seconds = 0) {
  return choose_draft_lengths({.plain = &c,
                               .drafted = &c,
                               .rows = rows,
                               .free_rows = free,
                               .token_seconds = token_seconds,
                               .reach = reach});
}

// A row's cost on an H200 (20b): 1.06, 1.40, 1.96, 2.77, 3.45 ms.
const StepCosts& h200() {
  static const StepCosts c = costs({{1, 1.06e-3}, {2, 1.40e-3}, {4, 1.96e-3}, {8, 2.77e-3}, {16, 3.45e-3}});
  return c;
}

// By trying every length: the most tokens a second.
int best_length(const StepCosts& c, const std::vector<double>& reach, int most) {
  double best = 1.02 / c.seconds(1), tokens = 1;
  int length = 0;
  for (int k = 1; k <= std::min(most, static_cast<int>(reach.size())); ++k) {
    tokens += reach[static_cast<size_t>(k - 1)];
    if (tokens / c.seconds(1 + k) > best) best = tokens / c.seconds(1 + k), length = k;
  }
  return length;
}

TEST(DraftLength, IsTheBestOfAllForOneRequest) {
  for (const double p : {0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99}) {
    for (const int free : {0, 1, 3, 7, 15}) {
      const std::vector<double> reach = falling(p, 16);
      EXPECT_EQ(choose(h200(), 1, free, {reach}), std::vector<int>{best_length(h200(), reach, free)}) << p;
    }
  }
  EXPECT_EQ(choose(h200(), 1, 15, {falling(0.2, 16)})[0], 0);
  EXPECT_GE(choose(h200(), 1, 15, {falling(0.95, 16)})[0], 7);
}

TEST(DraftLength, NoneWhereRowsCostAsMuchAsTokens) {
  StepCosts linear = costs({{1, 1e-3}, {2, 2e-3}, {4, 4e-3}, {8, 8e-3}, {16, 16e-3}});
  EXPECT_EQ(choose(linear, 1, 15, {falling(0.95, 16)}), std::vector<int>{0});
}

TEST(DraftLength, NoneBeforeAStepWasMeasured) {
  EXPECT_EQ(choose(StepCosts(), 1, 15, {falling(0.99, 16)}), std::vector<int>{0});
}

// Where all is accepted from the beginning on, a step without drafts has to be measured all the same.
TEST(DraftLength, NoneWhereOnlyStepsWithDraftsWereMeasured) {
  StepCosts c = costs({{5, 1e-3}});
  EXPECT_EQ(choose(c, 1, 15, {falling(1, 4)}), std::vector<int>{0});
  for (int i = 0; i < 3; ++i) c.add(1, 1e-3 / 4);
  EXPECT_EQ(choose(c, 1, 15, {falling(1, 4)}, 1e-3 / 4), std::vector<int>{0});
  EXPECT_EQ(choose(c, 1, 15, {falling(1, 4)}), std::vector<int>{4});
  for (int i = 0; i < 600; ++i) c.add(5, 1e-3);
  EXPECT_EQ(choose(c, 1, 15, {falling(1, 4)}), std::vector<int>{0});  // it was long ago
}

TEST(DraftLength, TheLikelyRequestGetsTheRows) {
  const std::vector<int> lengths = choose(h200(), 3, 13, {falling(0.1, 16), falling(0.97, 16), {}});
  EXPECT_EQ(lengths[0], 0);
  EXPECT_GE(lengths[1], 4);
  EXPECT_EQ(lengths[2], 0);
}

TEST(DraftLength, ACostlyDrafterDraftsLess) {
  const int cheap = choose(h200(), 1, 15, {falling(0.8, 16)})[0];
  const int costly = choose(h200(), 1, 15, {falling(0.8, 16)}, 0.15e-3)[0];
  EXPECT_LT(costly, cheap);
  EXPECT_EQ(choose(h200(), 1, 15, {falling(0.8, 16)}, 1e-3)[0], 0);
}

}  // namespace
}  // namespace moesaic
