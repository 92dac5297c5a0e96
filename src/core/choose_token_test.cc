#include "core/choose_token.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace moesaic {
namespace {

// core/batch.h's rule, step by step: a list of (token, share) in the order of accumulation.
int32_t by_the_rule(const std::vector<float>& logits, const std::vector<int32_t>& ids,
                    const DeviceSampling& s) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : ids[a] < ids[b];
  });
  const float top = logits[order[0]];
  if (s.temperature == 0) return ids[order[0]];
  const auto share = [&](size_t i) { return std::exp((double{logits[i]} - top) / s.temperature); };
  if (s.top_k > 0) order.resize(std::min<size_t>(order.size(), static_cast<size_t>(s.top_k)));
  double total = 0, mass = 0;
  for (const size_t i : order) total += share(i);
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || mass < s.top_p * total)) mass += share(order[kept++]);
  if (s.top_p < 1) order.resize(kept);
  std::erase_if(order, [&](size_t i) { return (double{logits[i]} - top) / s.temperature < s.least; });
  if (s.top_k == 0 && s.top_p == 1)
    std::ranges::sort(order, [&](size_t a, size_t b) { return ids[a] < ids[b]; });
  total = 0;
  for (const size_t i : order) total += share(i);
  double passed = 0;
  for (const size_t i : order) {
    passed += share(i);
    if (s.uniform * total < passed) return ids[i];
  }
  return ids[order.back()];
}

TEST(ChooseToken, FollowsTheRuleOfDeviceSampling) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal(0, 2);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int n = 1; n < 400; ++n) {
    std::vector<float> logits(static_cast<size_t>(n % 37 + 1));
    for (float& v : logits) v = std::round(normal(rng) * 4) / 4;  // with equals
    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 5);
    if (n % 3 == 0) std::ranges::shuffle(ids, rng);
    const DeviceSampling s = {.temperature = n % 5 == 0 ? 0 : 0.5 + uniform(rng),
                              .top_p = n % 2 == 0 ? 1 : uniform(rng),
                              .least = n % 7 == 0 ? -2.0 : -60.0,
                              .uniform = uniform(rng),
                              .top_k = n % 4 == 0 ? 6 : 0};
    EXPECT_EQ(choose_token(logits, ids, s), by_the_rule(logits, ids, s)) << n;
  }
}

TEST(ChooseToken, ALogitThatIsNotFiniteGivesNone) {
  for (const float bad : {NAN, INFINITY}) {
    for (size_t at = 0; at < 11; ++at) {
      std::vector<float> logits(11, 1.0f);
      logits[at] = bad;
      EXPECT_EQ(choose_token(logits, {}, {.temperature = 1}), -1);
      EXPECT_FALSE(all_finite(logits));
    }
  }
  EXPECT_FALSE(all_finite(std::vector<float>{0, -INFINITY}));
  EXPECT_EQ(choose_token(std::vector<float>{1, 2, 2}, {}, {}), 1);
}

TEST(ChooseToken, MinusInfinityIsNeverChosen) {
  std::vector<float> logits(5000, -INFINITY);
  for (const int32_t only : {0, 1023, 1024, 4999}) {
    logits[static_cast<size_t>(only)] = -100;
    for (const DeviceSampling& s : {DeviceSampling{}, DeviceSampling{.temperature = 1, .uniform = 0.999999},
                                    DeviceSampling{.temperature = 5, .top_p = 0.999, .uniform = 0.5},
                                    DeviceSampling{.temperature = 1, .uniform = 0.5, .top_k = 50}})
      EXPECT_EQ(choose_token(logits, {}, s), only);
    logits[static_cast<size_t>(only)] = -INFINITY;
  }
  EXPECT_EQ(choose_token(logits, {}, {.temperature = 1}), -1);
}

// A whole vocabulary, at many temperatures: the shares add up in another order and precision than by the
// rule, so that a token may differ where `uniform` falls on an edge.
TEST(ChooseToken, FollowsTheRuleWithAWholeVocabulary) {
  std::mt19937_64 rng(2);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<int32_t> ids(50'003);
  std::iota(ids.begin(), ids.end(), 0);
  int different = 0;
  for (int n = 0; n < 40; ++n) {
    std::normal_distribution<float> normal(0, n % 2 == 0 ? 1 : 4);
    std::vector<float> logits(ids.size());
    for (float& v : logits) v = normal(rng);
    const DeviceSampling s = {.temperature = 0.2 + uniform(rng),
                              .top_p = n % 3 == 0 ? 1 : uniform(rng),
                              .least = n % 5 == 0 ? -2.0 : -60.0,
                              .uniform = uniform(rng),
                              .top_k = n % 4 == 0   ? 50
                                       : n % 4 == 1 ? 5000
                                                    : 0};
    different += choose_token(logits, {}, s) != by_the_rule(logits, ids, s);
  }
  EXPECT_LE(different, 1);
}

}  // namespace
}  // namespace moesaic
