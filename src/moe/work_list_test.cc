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
      EXPECT_EQ(work.slots[pair], s);
      if (s > work.offsets[e]) {
        EXPECT_LE(work.rows[s - 1], work.rows[s]);
      }
    }
  }
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

}  // namespace
}  // namespace moesaic
