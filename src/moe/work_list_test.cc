#include "moe/work_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace moesaic {
namespace {

TEST(WorkList, GroupsEveryPairOnceInRowOrder) {
  std::mt19937 rng(3);
  constexpr int kExperts = 7, kTopK = 3, kTokens = 31;
  std::vector<int32_t> ids;
  for (int i = 0; i < kTokens * kTopK; ++i)
    ids.push_back(static_cast<int32_t>(rng() % (kExperts - 1)));  // one stays empty
  WorkList work;
  build_work_list(ids, kTopK, kExperts, work);
  EXPECT_EQ(work.offsets.back(), kTokens * kTopK);
  EXPECT_EQ(work.offsets[kExperts - 1], work.offsets[kExperts]);
  for (int e = 0; e < kExperts; ++e) {
    for (int s = work.offsets[e]; s < work.offsets[e + 1]; ++s) {
      const int pair = work.rows[s] * kTopK + work.choices[s];
      EXPECT_EQ(ids[pair], e);
      EXPECT_EQ(work.permuted_rows[pair], s);
      if (s > work.offsets[e]) {
        EXPECT_LE(work.rows[s - 1], work.rows[s]);
      }
    }
  }
}

TEST(WorkList, NegativeIdsHaveNoPlace) {
  WorkList work;
  build_work_list(std::vector<int32_t>{2, -1, -3, 2, 0, -1}, 2, 3, work);
  EXPECT_EQ(work.offsets, std::vector<int32_t>({0, 1, 1, 3}));
  EXPECT_EQ(work.rows, std::vector<int32_t>({2, 0, 1}));
  EXPECT_EQ(work.choices, std::vector<int32_t>({0, 0, 1}));
  EXPECT_EQ(work.permuted_rows, std::vector<int32_t>({1, -1, -1, 2, 0, -1}));
  EXPECT_EQ(work.active, std::vector<int32_t>({0, 2}));
}

TEST(WorkList, NoTokens) {
  WorkList work;
  build_work_list({}, 4, 32, work);
  EXPECT_TRUE(work.active.empty());
  EXPECT_EQ(work.offsets.back(), 0);
}

TEST(Route, MatchesSorting) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> logits(5 + trial % 30);
    for (float& x : logits) x = normal(rng);
    std::vector<int32_t> order(logits.size()), ids(4);
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    std::vector<float> weights(4);
    route_row(logits, 4, ids.data(), weights.data());
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += std::exp(double{logits[order[k]]});
    for (int k = 0; k < 4; ++k) {
      EXPECT_EQ(ids[k], order[k]);
      EXPECT_NEAR(weights[k], std::exp(double{logits[order[k]]}) / sum, 1e-6);
    }
  }
}

TEST(Route, EqualLogitsGoToTheLowerExpert) {
  const std::vector<float> logits = {1, 2, 2, 2, 1};
  int32_t ids[4];
  float weights[4];
  route_row(logits, 4, ids, weights);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 4), (std::vector<int32_t>{1, 2, 3, 0}));
  EXPECT_EQ(weights[0], weights[2]);
}

TEST(Route, EveryExpertAndOneExpert) {
  const std::vector<float> logits = {-3, 5, 0};
  int32_t ids[3];
  float weights[3];
  route_row(logits, 3, ids, weights);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 3), (std::vector<int32_t>{1, 2, 0}));
  EXPECT_NEAR(weights[0] + weights[1] + weights[2], 1, 1e-6);
  route_row(logits, 1, ids, weights);
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(weights[0], 1);
}

// A NaN must not send the ids out of range: the step fails later, by its activations.
TEST(Route, NanLogitsStillNameDistinctExperts) {
  for (int position = 0; position < 6; ++position) {
    std::vector<float> logits = {0.5f, 3, -1, 2, 1, 0};
    logits[static_cast<size_t>(position)] = NAN;
    int32_t ids[4];
    float weights[4];
    route_row(logits, 4, ids, weights);
    std::sort(ids, ids + 4);
    EXPECT_GE(ids[0], 0);
    EXPECT_LT(ids[3], 6);
    EXPECT_EQ(std::unique(ids, ids + 4), ids + 4);
  }
  const std::vector<float> all(5, NAN);
  int32_t ids[4];
  float weights[4];
  route_row(all, 4, ids, weights);
  for (const int32_t id : ids) EXPECT_TRUE(id >= 0 && id < 5);
}

TEST(Route, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {3e38f, -3e38f, 1e38f};
  int32_t ids[2];
  float weights[2];
  route_row(logits, 2, ids, weights);
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(weights[0], 1);
  EXPECT_EQ(weights[1], 0);
}

// One list is reused from step to step: nothing of the step before may show.
TEST(WorkList, ReuseAfterALargerStep) {
  WorkList reused, fresh;
  build_work_list(std::vector<int32_t>(64, 2), 4, 8, reused);
  const std::vector<int32_t> ids = {7, 0, 3, 7};
  build_work_list(ids, 2, 8, reused);
  build_work_list(ids, 2, 8, fresh);
  EXPECT_EQ(reused.offsets, fresh.offsets);
  EXPECT_EQ(reused.rows, fresh.rows);
  EXPECT_EQ(reused.choices, fresh.choices);
  EXPECT_EQ(reused.permuted_rows, fresh.permuted_rows);
  EXPECT_EQ(reused.active, (std::vector<int32_t>{0, 3, 7}));
}

}  // namespace
}  // namespace moesaic
