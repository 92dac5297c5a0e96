#include "drafting/draft_budget.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

// Runs `steps` steps of 1 ms; those in which drafting does not rest cost `costs` more. Returns the time that
// the whole takes, as a share of the steps without drafts.
double run(DraftBudget& budget, int steps, double costs, double saves, int* active = nullptr) {
  constexpr double kStep = 1e-3;
  double seconds = 0;
  for (int i = 0; i < steps; ++i) {
    const bool drafts = !budget.rests();
    const double step = kStep * (1 + (drafts ? costs - saves : 0));
    seconds += step;
    budget.earn(step);
    if (drafts) budget.spend(costs * kStep), budget.save(saves * kStep);
    if (active != nullptr) *active += drafts ? 1 : 0;
    budget.settle(kStep);
  }
  return seconds / (steps * kStep);
}

TEST(DraftBudget, LosesASmallShareWhateverATrialCosts) {
  for (const double costs : {0.02, 0.1, 0.5, 1.0, 5.0}) {
    DraftBudget budget;
    run(budget, 1000, costs, 0);
    int active = 0;
    EXPECT_LT(run(budget, 10000, costs, 0, &active), 1.015) << costs;
    EXPECT_GE(active, 5) << costs;  // it goes on trying
  }
}

TEST(DraftBudget, NeverRestsWhereDraftsSaveWhatTheyCost) {
  DraftBudget budget;
  int active = 0;
  run(budget, 5000, 0.3, 0.31, &active);
  EXPECT_EQ(active, 5000);
}

// However much was saved before.
TEST(DraftBudget, RestsSoonWhereDraftsStopSaving) {
  DraftBudget budget;
  run(budget, 5000, 0.3, 0.9);
  int active = 0;
  run(budget, 100, 0.5, 0, &active);
  EXPECT_LE(active, 25);
}

TEST(DraftBudget, ComesBackWhenDraftsSaveAgain) {
  DraftBudget budget;
  run(budget, 1000, 0.5, 0);
  int active = 0;
  run(budget, 1200, 0.3, 0.9, &active);
  EXPECT_GT(active, 200);
}

TEST(DraftBudget, NothingRestsBeforeAStepIsKnown) {
  DraftBudget budget;
  budget.spend(10);
  budget.settle(0);
  EXPECT_FALSE(budget.rests());
}

}  // namespace
}  // namespace moesaic
