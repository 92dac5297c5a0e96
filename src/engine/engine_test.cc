#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "model/random_model.h"

namespace moesaic {
namespace {

class EngineTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    config_ = {.name = "test",
               .layers = 2,
               .hidden = 96,
               .intermediate = 96,
               .heads = 4,
               .kv_heads = 2,
               .head_dim = 32,
               .experts = 6,
               .experts_per_token = 4,
               .vocab = 300,
               .window = 128,
               .sliding = {true, false},
               .max_context = 2048};
    backend_ = create_backend(GetParam(), {.threads = 2, .max_rows = 64}).value();
    ASSERT_TRUE(backend_->load(config_, make_random_model(config_, {}), {}).ok());
  }
  Engine engine(int max_batch, int context = 256) {
    return Engine::create(*backend_, config_, {.context = context, .max_batch = max_batch, .max_rows = 64})
        .value();
  }
  std::vector<int32_t> prompt(int n, uint32_t seed) const {
    std::mt19937 rng(seed);
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % config_.vocab);
    return tokens;
  }
  static std::function<void(const SampledToken&)> quiet() {
    return [](const SampledToken&) {};
  }

  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(EngineTest, ARequestGivesTheSameTokensAloneAndInABatch) {
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
  std::vector<std::shared_ptr<Request>> together;
  for (int i = 0; i < 6; ++i)
    together.push_back(
        e.submit(prompt(lengths[i], i), {.seed = static_cast<uint64_t>(i), .max_tokens = 20}, quiet())
            .value());
  ASSERT_TRUE(e.run_to_end().ok());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(together[i]->tokens, alone[i]) << i;
  EXPECT_EQ(e.stats().full.used, 0);
}

TEST_P(EngineTest, EndsForEveryReason) {
  Engine e = engine(1, 100);
  const auto full = e.submit(prompt(90, 1), {}, quiet()).value();
  ASSERT_TRUE(e.run_to_end().ok());
  EXPECT_EQ(full->finish, FinishReason::kLength);
  EXPECT_EQ(full->tokens.size(), 100u);
  const auto greedy = e.submit(prompt(10, 2), {.temperature = 0, .max_tokens = 3}, quiet()).value();
  ASSERT_TRUE(e.run_to_end().ok());
  std::vector<bool> stops;
  const auto stop = e.submit(prompt(10, 2), {.temperature = 0, .stop_tokens = {greedy->tokens[11]}},
                             [&](const SampledToken& t) { stops.push_back(t.is_stop); })
                        .value();
  ASSERT_TRUE(e.run_to_end().ok());
  EXPECT_EQ(stops, (std::vector<bool>{false, true}));
  EXPECT_EQ(stop->finish, FinishReason::kStop);
  EXPECT_EQ(stop->generated(), 1);
  std::stop_source cancel;
  const auto cancelled =
      e.submit(
           prompt(10, 2), {}, [&](const SampledToken&) { cancel.request_stop(); }, cancel.get_token())
          .value();
  ASSERT_TRUE(e.run_to_end().ok());
  EXPECT_EQ(cancelled->finish, FinishReason::kCancelled);
  EXPECT_EQ(cancelled->generated(), 1);
}

TEST_P(EngineTest, WhatIsCancelledBetweenStepsIsNotComputedFurther) {
  Engine e = engine(1);
  std::stop_source cancel;
  const auto r = e.submit(prompt(200, 1), {}, quiet(), cancel.get_token()).value();
  ASSERT_TRUE(e.step().ok());
  cancel.request_stop();
  ASSERT_TRUE(e.step().ok());
  EXPECT_EQ(r->finish, FinishReason::kCancelled);
  EXPECT_EQ(r->computed, 64);  // the first step's rows
  EXPECT_TRUE(e.idle());
}

TEST_P(EngineTest, MoreRequestsThanTheBatchHoldsWaitTheirTurn) {
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

TEST_P(EngineTest, RefusesWhatItCannotServe) {
  Engine e = engine(1, 100);
  EXPECT_FALSE(e.submit({}, {}, quiet()).ok());
  EXPECT_FALSE(e.submit(prompt(100, 1), {}, quiet()).ok());
  EXPECT_FALSE(e.submit({0, 300}, {}, quiet()).ok());
  EXPECT_FALSE(e.submit({0}, {.temperature = NAN}, quiet()).ok());
  for (const EngineOptions& o : std::vector<EngineOptions>{{.context = 5000},
                                                           {.context = -1},
                                                           {.context = 200, .kv_tokens = 199},
                                                           {.max_batch = 0},
                                                           {.max_batch = -3},
                                                           {.max_rows = 0},
                                                           {.max_batch = 8, .max_rows = 7},
                                                           {.max_batch = 1 << 30, .max_rows = 1 << 30}}) {
    EXPECT_FALSE(Engine::create(*backend_, config_, o).ok());
  }
  EXPECT_TRUE(e.idle());
}

// Turns that go on from all of the one before, from its prompt alone (what followed is told otherwise), from
// less than that, and from the very same prompt. Long enough that windows leave pages behind.
TEST_P(EngineTest, ThePrefixCacheChangesNoToken) {
  Engine caching = engine(1, 500);
  const auto ask = [&](Engine& e, const std::vector<int32_t>& tokens, int n) {
    auto r = e.submit(tokens, {.seed = 9, .max_tokens = n}, quiet()).value();
    EXPECT_TRUE(e.run_to_end().ok());
    e.scheduler().check();
    return r;
  };
  const auto extended = [&](std::vector<int32_t> tokens, size_t keep, int n) {
    tokens.resize(keep);
    const std::vector<int32_t> more = prompt(n, static_cast<uint32_t>(n));
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  };
  const std::vector<int32_t> whole = ask(caching, prompt(30, 1), 20)->tokens;
  struct Turn {
    std::vector<int32_t> prompt;
    int reused, tokens;
  };
  std::vector<Turn> turns = {{extended(whole, 50, 101), 32, 170}};
  turns.push_back({extended(turns[0].prompt, 151, 33), 128, 5});  // the prompt of the turn before and more
  turns.push_back({turns[1].prompt, 160, 5});                     // the same again
  turns.push_back({extended(turns[1].prompt, 120, 9), 96, 5});    // parts ways before the prompt's end
  turns.push_back({prompt(40, 77), 0, 5});                        // another conversation
  turns.push_back({extended(turns[4].prompt, 40, 1), 32, 5});
  std::vector<std::vector<int32_t>> got;
  for (const Turn& t : turns) {
    const auto r = ask(caching, t.prompt, t.tokens);
    EXPECT_EQ(r->reused, t.reused);
    got.push_back(r->tokens);
  }
  EXPECT_EQ(caching.stats().prefix_hits, 32u + 128 + 160 + 96 + 32);
  // One backend holds one engine's cache: the other engine's turns come afterwards, on a cache of its own.
  Engine fresh =
      Engine::create(*backend_, config_, {.context = 500, .max_rows = 64, .prefix_cache = false}).value();
  for (size_t i = 0; i < turns.size(); ++i)
    EXPECT_EQ(ask(fresh, turns[i].prompt, turns[i].tokens)->tokens, got[i]) << i;
  EXPECT_EQ(fresh.stats().prefix_hits, 0u);
}

// Real logits in company: arrivals at random, prompts in chunks, half of them with a common beginning, pages
// for two or three contexts only.
TEST_P(EngineTest, CompanyChangesNoToken) {
  if (GetParam() == std::string("reference")) GTEST_SKIP() << "minutes of scalar arithmetic";
  constexpr int kCount = 64;
  struct Asked {
    std::vector<int32_t> prompt;
    SamplingParams params;
  };
  std::mt19937 rng(3);
  std::vector<Asked> asked;
  for (uint32_t i = 0; i < kCount; ++i) {
    std::vector<int32_t> tokens = prompt(1 + static_cast<int>(rng() % 100), i % 2 == 0 ? 7 : i);
    tokens.push_back(static_cast<int32_t>(i));
    SamplingParams params{.temperature = i % 3 == 0 ? 0.0 : 1.0, .seed = i};
    params.top_k = i % 4 == 0 ? 20 : 0;
    params.frequency_penalty = i % 5 == 0 ? 0.5 : 0;
    params.max_tokens = 20 + static_cast<int>(rng() % 100);
    asked.push_back({std::move(tokens), std::move(params)});
  }
  const auto run = [&](const EngineOptions& options) {
    Engine e = Engine::create(*backend_, config_, options).value();
    std::vector<std::shared_ptr<Request>> requests;
    for (const Asked& a : asked) {
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

TEST_P(EngineTest, CancellingFreesPagesAtOnce) {
  Engine e = Engine::create(*backend_, config_, {.context = 256, .max_batch = 4, .max_rows = 64}).value();
  std::stop_source cancel;
  std::vector<std::shared_ptr<Request>> requests;
  for (uint32_t i = 0; i < 4; ++i) {
    const auto token = i < 3 ? cancel.get_token() : std::stop_token();
    requests.push_back(e.submit(prompt(60, i), {.max_tokens = 100}, quiet(), token).value());
  }
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(e.step().ok());
  const EngineStats before = e.stats();
  EXPECT_EQ(before.running, 4);
  cancel.request_stop();
  ASSERT_TRUE(e.step().ok());
  EXPECT_EQ(e.stats().running, 1);
  EXPECT_LE(e.stats().full.used, before.full.used / 4 + 1);
  EXPECT_GT(e.stats().full.cached, before.full.cached);
  ASSERT_TRUE(e.run_to_end().ok());
  EXPECT_EQ(requests[3]->generated(), 100);
}

// Two prompts depart from a third behind its first five pages, which the window has left there: the second
// shows that others part ways at this place, and its window is kept although the pool is short of them.
TEST_P(EngineTest, WindowsAreKeptWherePromptsPart) {
  Engine e = engine(1, 512);
  const std::vector<int32_t> system = prompt(165, 1);
  const auto ask = [&](uint32_t seed) {
    std::vector<int32_t> tokens = system;
    const std::vector<int32_t> own = prompt(300, seed);
    tokens.insert(tokens.end(), own.begin(), own.end());
    const auto r = e.submit(tokens, {.max_tokens = 5}, quiet()).value();
    EXPECT_TRUE(e.run_to_end().ok());
    return r->reused;
  };
  ask(100);
  ask(101);
  for (uint32_t seed = 102; seed < 106; ++seed) EXPECT_EQ(ask(seed), 160) << seed;
}

INSTANTIATE_TEST_SUITE_P(Devices, EngineTest, testing::Values("cpu", "reference"),
                         [](const auto& device) { return std::string(device.param); });

}  // namespace
}  // namespace moesaic
