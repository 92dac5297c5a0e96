// A request gives the same tokens alone, in a batch and in changing company.
#include "engine/small_model_test.h"

namespace moesaic {
namespace {

class Batching : public SmallModelTest {};

TEST_P(Batching, ARequestGivesTheSameTokensAloneAndInABatch) {
  const int lengths[] = {1, 5, 63, 64, 65, 150};
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 6; ++i) {
    Engine e = engine(1);
    const auto r =
        e.submit(prompt(lengths[i], i), {.seed = static_cast<uint64_t>(i), .max_tokens = 20}, quiet())
            .value();
    ASSERT_TRUE(e.run_to_end().ok());
    EXPECT_EQ(r->finish, FinishReason::kLength);
    EXPECT_EQ(r->generated(), 20);
    alone.push_back(r->tokens);
  }
  Engine e = engine(6);
  EXPECT_GT(e.stats().full.total, 0);  // before the first step
  std::vector<std::shared_ptr<Request>> together;
  for (int i = 0; i < 6; ++i)
    together.push_back(
        e.submit(prompt(lengths[i], i), {.seed = static_cast<uint64_t>(i), .max_tokens = 20}, quiet())
            .value());
  ASSERT_TRUE(e.run_to_end().ok());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(together[i]->tokens, alone[i]) << i;
  EXPECT_EQ(e.stats().full.used, 0);
  EXPECT_GE(e.stats().steps, 20u);
}

TEST_P(Batching, MoreRequestsThanTheBatchHoldsWaitTheirTurn) {
  Engine e = engine(1, 64);
  std::vector<std::shared_ptr<Request>> requests;
  for (uint32_t i = 0; i < 3; ++i)
    requests.push_back(e.submit(prompt(20, i), {.max_tokens = 30}, quiet()).value());
  ASSERT_TRUE(e.run_to_end().ok());
  for (const auto& r : requests) {
    EXPECT_EQ(r->finish, FinishReason::kLength) << r->error.message();
    EXPECT_EQ(r->generated(), 30);
  }
}

// Real logits in company: arrivals at random, prompts in chunks, half of them with a common beginning, pages
// for two or three contexts only.
TEST_P(Batching, CompanyChangesNoToken) {
  if (GetParam() == std::string("reference")) GTEST_SKIP() << "minutes of scalar arithmetic";
  constexpr int kCount = 64;
  struct Submitted {
    std::vector<int32_t> prompt;
    SamplingParams params;
  };
  std::mt19937 rng(3);
  std::vector<Submitted> submitted;
  for (uint32_t i = 0; i < kCount; ++i) {
    std::vector<int32_t> tokens = prompt(1 + static_cast<int>(rng() % 100), i % 2 == 0 ? 7 : i);
    tokens.push_back(static_cast<int32_t>(i));
    SamplingParams params{.temperature = i % 3 == 0 ? 0.0 : 1.0, .seed = i};
    params.top_k = i % 4 == 0 ? 20 : 0;
    params.frequency_penalty = i % 5 == 0 ? 0.5 : 0;
    params.max_tokens = 20 + static_cast<int>(rng() % 100);
    submitted.push_back({std::move(tokens), std::move(params)});
  }
  const auto run = [&](const EngineOptions& options) {
    Engine e = Engine::create(*backend_, config_, options).value();
    std::vector<std::shared_ptr<Request>> requests;
    for (const Submitted& a : submitted) {
      requests.push_back(e.submit(a.prompt, a.params, quiet()).value());
      for (uint32_t s = rng() % 4; s > 0; --s) EXPECT_TRUE(e.step().ok());
    }
    EXPECT_TRUE(e.run_to_end().ok());
    e.scheduler().check();
    EXPECT_EQ(e.stats().full.used + e.stats().window.used, 0);
    return std::pair(std::move(requests), e.stats());
  };
  const auto [alone, calm] = run({.context = 192, .max_rows = 64, .prefix_cache = false});
  EXPECT_EQ(calm.preemptions + calm.prefix_hits, 0u);
  for (const int max_batch : {2, 8, 64}) {
    const auto [together, busy] =
        run({.context = 192, .max_batch = max_batch, .max_rows = 64, .kv_tokens = 224 + 4 * max_batch});
    EXPECT_GT(busy.prefix_hits, 0u);
    EXPECT_TRUE(busy.preemptions > 0 || max_batch < kCount);
    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_EQ(together[i]->tokens, alone[i]->tokens) << "request " << i << " of " << max_batch;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Batching, kHostBackends, backend_name);

}  // namespace
}  // namespace moesaic
