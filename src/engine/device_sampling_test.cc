// An engine whose backend samples the tokens itself and runs behind the host gives what one gives that waits.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "engine/late_backend.h"

namespace moesaic {
namespace {

TEST(DeviceSampling, TheSameTokensAsWaitingForEveryStep) {
  for (const int max_batch : {1, 3, 8}) {
    const EngineOptions options{.context = 160, .max_batch = max_batch, .max_rows = 64};
    EngineOptions by_threads = options;
    by_threads.parallel_logits = 1;
    Harness on_host(false, options), on_device(true, options), with_threads(false, by_threads),
        both(true, by_threads);
    for (Harness* run : {&on_host, &on_device, &with_threads, &both}) mixed_load(*run);
    on_device.expect_equals(on_host), with_threads.expect_equals(on_host), both.expect_equals(on_host);
    EXPECT_EQ(on_device.backend.most_in_flight_, 2u);
    EXPECT_EQ(on_device.engine.stats().full.used, 0);
    on_device.engine.scheduler().check();
    EXPECT_TRUE(on_device.engine.idle());
  }
}

// A request that the host samples goes on in every second step; the others in every one.
TEST(DeviceSampling, ARequestForTheHostHoldsNobodyUp) {
  const EngineOptions options{.context = 200, .max_batch = 4, .max_rows = 64};
  Harness on_host(false, options), on_device(true, options);
  for (Harness* run : {&on_host, &on_device}) {
    for (int i = 0; i < 3; ++i) run->submit(10 + i, {.seed = 4, .max_tokens = 100});
    run->submit(10, {.frequency_penalty = 0.5, .seed = 9, .max_tokens = 100});
  }
  int host_rows = 0, steps = 0;
  on_device.backend.when_begun_ = [&](const Batch& batch) {
    EXPECT_FALSE(batch.sampling.empty());
    host_rows += static_cast<int>(batch.host_rows.size()), ++steps;
  };
  for (Harness* run : {&on_host, &on_device}) ASSERT_TRUE(run->engine.run_to_end().ok());
  on_device.expect_equals(on_host);
  EXPECT_EQ(on_device.backend.most_in_flight_, 2u);
  EXPECT_EQ(host_rows, 100);
  EXPECT_NEAR(steps, 150, 2);  // 100 beside the others, then 50
}

// Every way in which a request changes its logits.
std::vector<SamplingParams> edited_params() {
  return {{.frequency_penalty = 0.5},
          {.temperature = 0.5, .presence_penalty = -1},
          {.top_k = 5, .repetition_penalty = 1.3},
          {.temperature = 2, .logit_bias = {{7, 99.5f}, {9, 99.0f}}},
          {.allowed_tokens = {3, 77, 212, 499}},
          {.temperature = 0, .bad_words = {{1}, {2}, {3, 4}}},
          {.top_p = 0.9, .stop_tokens = many_stops(), .min_tokens = 5},
          {.frequency_penalty = 1, .top_logprobs = 3},
          {.top_logprobs = 0, .allowed_tokens = {3, 77}}};
}

// A request whose logits change goes on in every step, as the others do, and says what it says on a host.
void expect_edits_hold_nobody_up(std::unique_ptr<Drafter> drafter) {
  const EngineOptions options{.context = 200, .max_batch = 12, .max_rows = 64};
  Harness on_host(false, options), on_device(true, options, false, true);
  if (drafter != nullptr) on_device.engine.speculate(std::move(drafter), 4);
  for (Harness* run : {&on_host, &on_device}) {
    run->submit(10, {.seed = 4, .max_tokens = 100});
    uint64_t seed = 0;
    for (SamplingParams p : edited_params()) {
      p.seed = ++seed, p.max_tokens = 100;
      run->submit(10 + static_cast<int>(seed), p);
    }
  }
  int steps = 0;
  size_t edited = 0;
  on_device.backend.when_begun_ = [&](const Batch& batch) {
    EXPECT_FALSE(batch.sampling.empty());
    EXPECT_TRUE(batch.host_rows.empty());
    ++steps;
  };
  on_device.backend.when_edited_ = [&](std::span<const EditedRow> rows) { edited += rows.size(); };
  for (Harness* run : {&on_host, &on_device}) ASSERT_TRUE(run->engine.run_to_end().ok());
  on_device.expect_equals(on_host);
  EXPECT_LE(steps, 106);
  EXPECT_GT(edited, 700u);
  EXPECT_EQ(on_device.backend.most_in_flight_, 2u);
  on_device.engine.scheduler().check();
}

TEST(DeviceSampling, ADeviceThatEditsLogitsHoldsNobodyUp) { expect_edits_hold_nobody_up(nullptr); }

class SilentDrafter final : public Drafter {
 public:
  std::string name() const override { return "silent"; }
  Status draft(std::span<DraftTask>) override { return {}; }
  void end(uint64_t, std::span<const int32_t>, int) override {}
};

TEST(DeviceSampling, ItEditsBesideADrafterWithoutAGuess) {
  expect_edits_hold_nobody_up(std::make_unique<SilentDrafter>());
}

// Few pages: requests are preempted and computed again, some while their edited row is in flight.
TEST(DeviceSampling, EditsSurvivePreemption) {
  const EngineOptions options{.context = 300, .max_batch = 6, .max_rows = 64, .kv_tokens = 448};
  Harness on_host(false, options), on_device(true, options, false, true);
  for (Harness* run : {&on_host, &on_device}) {
    uint64_t seed = 50;
    for (SamplingParams p : edited_params()) {
      p.seed = ++seed, p.max_tokens = 120;
      run->submit(40, p);
    }
    ASSERT_TRUE(run->engine.run_to_end().ok());
  }
  on_device.expect_equals(on_host);
  EXPECT_GT(on_device.engine.stats().preemptions, 0u);
  on_device.engine.scheduler().check();
}

// A prompt alone gets large steps, beside a request that decodes small ones.
TEST(DeviceSampling, PromptsAreReadInSmallStepsBesideADecodingRequest) {
  Harness run(true, {.context = 700, .max_batch = 4, .max_rows = 128, .mixed_rows = 48});
  std::vector<int> alone, beside;
  bool decoding = false;
  run.backend.when_begun_ = [&](const Batch& batch) { (decoding ? beside : alone).push_back(batch.rows()); };
  run.submit(300, {.max_tokens = 40});
  while (run.received[0].empty()) ASSERT_TRUE(run.engine.step().ok());
  decoding = true;
  run.submit(301, {.max_tokens = 4});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(std::vector(alone.begin(), alone.begin() + 3), (std::vector{128, 128, 44}));
  EXPECT_EQ(std::ranges::max(beside), 48);
  // 301 rows, 47 at a time and fewer as they get deeper.
  EXPECT_EQ(std::ranges::count_if(beside, [](int rows) { return rows > 40; }), 6);
}

// More requests for the host than a step has room for take turns.
TEST(DeviceSampling, ManyRequestsForTheHostTakeTurns) {
  const EngineOptions options{.context = 200, .max_batch = 150, .max_rows = 200};
  Harness on_host(false, options), on_device(true, options);
  for (Harness* run : {&on_host, &on_device}) {
    for (int i = 0; i < 150; ++i) {
      SamplingParams p{.seed = static_cast<uint64_t>(i), .max_tokens = 60};
      if (i % 15 != 0) p.frequency_penalty = 0.5;
      run->submit(1 + i % 40, p);
    }
    ASSERT_TRUE(run == &on_device || run->engine.run_to_end().ok());
  }
  on_device.backend.when_begun_ = [&](const Batch& batch) {
    EXPECT_LE(std::ssize(batch.host_rows), Scheduler::kHostRows);
  };
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) ASSERT_TRUE(on_device.engine.step().ok());
  };
  steps(50);  // all prompts are computed
  const auto before = on_device.received;
  steps(30);
  size_t least = 1000, most = 0;
  for (size_t i = 0; i < 150; ++i) {
    if (i % 15 == 0) continue;
    const size_t said = on_device.received[i].size() - before[i].size();
    least = std::min(least, said), most = std::max(most, said);
  }
  EXPECT_GE(least, 8u);  // 13 or 14 if the turns were even
  EXPECT_LE(most, 15u);  // a row in every second step
  ASSERT_TRUE(on_device.engine.run_to_end().ok());
  on_device.expect_equals(on_host);
  on_device.engine.scheduler().check();
}

TEST(DeviceSampling, LogprobsAreToldWithoutWaiting) {
  Harness on_host(false, {.context = 100, .max_rows = 64}), on_device(true, {.context = 100, .max_rows = 64});
  for (Harness* run : {&on_host, &on_device}) {
    for (const int n : {-1, 0, 20}) run->submit(10, {.seed = 4, .max_tokens = 12, .top_logprobs = n});
    ASSERT_TRUE(run->engine.run_to_end().ok());
    for (const TokenLogprobs& t : run->received_logprobs[0]) EXPECT_EQ(t, TokenLogprobs{});
    for (const TokenLogprobs& t : run->received_logprobs[1])
      EXPECT_NEAR(t.logprob, -std::log(kChoices), 1e-9);
    for (const TokenLogprobs& t : run->received_logprobs[2]) EXPECT_EQ(t.top.size(), 20u);
  }
  on_device.expect_equals(on_host);
  EXPECT_EQ(on_device.backend.most_in_flight_, 2u);
}

TEST(DeviceSampling, WhatAStepTooManyLeftIsNotReused) {
  const EngineOptions options{.context = 400, .max_rows = 64};
  Harness on_host(false, options), on_device(true, options);
  for (Harness* run : {&on_host, &on_device}) {
    std::vector<int32_t> prompt(30, 5);
    for (int turn = 0; turn < 12; ++turn) {
      const Request& r = run->submit(prompt, {.seed = 3, .max_tokens = 20, .stop_tokens = many_stops()},
                                     turn % 3 == 2 ? 2 : 0);
      ASSERT_TRUE(run->engine.run_to_end().ok());
      prompt = r.tokens;
      prompt.push_back(turn);
    }
  }
  on_device.expect_equals(on_host);
  EXPECT_GT(on_device.requests.back()->reused, 30);
}

TEST(DeviceSampling, CancellingCountsFromTheNextStepOn) {
  Harness run(true, {.context = 300, .max_batch = 2, .max_rows = 64});
  Request& a = run.submit(10, {.temperature = 0});
  run.submit(10, {.temperature = 0, .max_tokens = 40});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(run.engine.step().ok());
  EXPECT_EQ(a.generated(), 4);  // the fifth is in flight
  run.cancels[0].request_stop();
  ASSERT_TRUE(run.engine.step().ok());
  EXPECT_EQ(a.finish, FinishReason::kCancelled);
  EXPECT_EQ(run.received[0].size(), 4u);
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.received[1].size(), 40u);
}

TEST(DeviceSampling, AnEndKnownBeforehandComputesNothingMore) {
  Harness run(true, {.context = 100, .max_rows = 64});
  run.submit(10, {.temperature = 0, .max_tokens = 7});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.backend.begun_, 7);
  run.submit(90, {.temperature = 0});  // to the end of the context: 64 rows, 26 rows, 9 tokens more
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.requests[1]->tokens.size(), 100u);
  EXPECT_EQ(run.backend.begun_, 7 + 2 + 9);
}

TEST(DeviceSampling, AFaultEndsEveryRequestAndTheEngineGoesOn) {
  Harness run(true, {.context = 300, .max_batch = 2, .max_rows = 64});
  run.submit(10, {.temperature = 0});
  run.submit(20, {.temperature = 0});
  run.backend.fail_at_ = 6;
  EXPECT_EQ(run.engine.run_to_end().code(), StatusCode::kInternal);
  for (const auto& r : run.requests) EXPECT_EQ(r->finish, FinishReason::kError);
  EXPECT_TRUE(run.engine.idle());
  run.backend.fail_at_ = -1;
  run.submit(10, {.temperature = 0, .max_tokens = 3});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(std::vector<int32_t>(run.received[0].begin(), run.received[0].begin() + 3), run.received[2]);
}

// A step is in flight behind the one whose tokens are told. With a draft head it may be taken first.
TEST(DeviceSampling, ACallbackThatThrowsLeavesNoStepInFlight) {
  for (const bool head : {false, true}) {
    const EngineOptions options{.context = 200, .max_batch = 4, .max_rows = 64};
    Harness run(true, options, head), alone(true, options, head);
    for (int round = 0; round < 3; ++round) {
      int told = 0;
      const auto throws = [&](const SampledToken&) {
        if (++told == 3 + round) throw std::runtime_error("a callback");
      };
      const auto request = run.engine.submit({1, 2, 3}, {.temperature = 0}, throws, {}).value();
      EXPECT_THROW((void)run.engine.run_to_end(), std::runtime_error);
      ASSERT_EQ(run.engine.run_to_end().message(), "");
      EXPECT_EQ(request->finish, FinishReason::kError);
    }
    for (Harness* each : {&run, &alone}) {
      for (int i = 0; i < 3; ++i) each->submit(20 + i, {.temperature = 0, .max_tokens = 40});
      ASSERT_EQ(each->engine.run_to_end().message(), "");
    }
    run.expect_equals(alone);
    EXPECT_LE(run.backend.most_in_flight_, 2u);
    run.engine.scheduler().check();
  }
}

// The second exception comes when the backend is to forget its steps. No later request may get their tokens.
TEST(DeviceSampling, StepsThatCannotBeForgottenAreForgottenByTheNextStep) {
  const EngineOptions options{.context = 200, .max_batch = 4, .max_rows = 64};
  Harness run(true, options), alone(true, options);
  run.backend.when_forgotten_ = [&] {
    run.backend.when_forgotten_ = nullptr;
    throw std::bad_alloc();
  };
  const auto throws = [](const SampledToken&) { throw std::runtime_error("a callback"); };
  ASSERT_TRUE(run.engine.submit({1, 2, 3}, {.temperature = 0}, throws, {}).ok());
  EXPECT_THROW((void)run.engine.run_to_end(), std::bad_alloc);
  for (Harness* each : {&run, &alone}) {
    each->submit(20, {.temperature = 0, .max_tokens = 40});
    ASSERT_EQ(each->engine.run_to_end().message(), "");
  }
  run.expect_equals(alone);
}

}  // namespace
}  // namespace moesaic
