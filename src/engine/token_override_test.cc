// Tokens that a request says whatever is sampled: the same on every kind of device, with drafts and without.
#include "engine/token_override.h"

#include <cmath>

#include "engine/late_backend.h"
#include "engine/test_drafter.h"

namespace moesaic {
namespace {

// After a token that is a multiple of seven, three more are said as they are; then five are said that nobody
// sampled, unless the sampled one ends in 3.
class AfterSevens final : public TokenOverride {
 public:
  static constexpr int kFirst = 490, kForced = 5, kFree = 3;

  int32_t instead_of(int32_t sampled) override {
    if (left_ != 0 || (at_ == 0 && sampled % 10 == 3)) return sampled;
    return kFirst + at_;
  }
  void said(int32_t token) override {
    if (left_ == 0 && token == kFirst + at_) {
      at_ = (at_ + 1) % kForced;
      if (at_ == 0) left_ = -1;
    } else if (left_ > 0) {
      --left_;
    } else if (left_ == 0) {
      left_ = -1;
    } else if (token % 7 == 0) {
      left_ = kFree;
    }
  }
  int untouched() const override { return left_ >= 0 ? left_ : 1 + kFree; }

 private:
  int left_ = -1, at_ = 0;
};

// Some of the requests have an override.
void overridden_load(Harness& run) {
  for (int i = 0; i < 40; ++i) {
    SamplingParams p{.temperature = i % 3 == 0 ? 0.0 : 1.0, .seed = static_cast<uint64_t>(i)};
    p.max_tokens = i % 4 == 1 ? 1 + i % 9 : 0;
    if (i % 8 == 2) p.stop_tokens = many_stops();
    if (i % 10 == 9) p.frequency_penalty = 0.5;
    if (i % 7 == 6) p.min_tokens = i % 5 * 6;
    if (i % 3 == 1) p.top_logprobs = i % 12;
    Request& r = run.submit(1 + (i * 37) % 150, p, i % 5 == 4 ? 30 : 0);
    if (i % 4 != 0) r.sampler->follow(std::make_unique<AfterSevens>());
    for (int s = 0; s < i % 4; ++s) ASSERT_EQ(run.engine.step().message(), "");
  }
  ASSERT_EQ(run.engine.run_to_end().message(), "");
}

// Tokens that were forced, looked for by the rule alone; all that had to be are.
int count_forced(const Harness& run) {
  int forced = 0;
  for (size_t i = 0; i < run.received.size(); ++i) {
    const std::vector<int32_t>& text = run.received[i];
    for (size_t at = 0; i % 4 != 0 && at < text.size(); ++at) {
      if (text[at] % 7 != 0) continue;
      at += 1 + AfterSevens::kFree;
      if (at >= text.size() || text[at] % 10 == 3) continue;
      for (int k = 0; k < AfterSevens::kForced && at < text.size(); ++k, ++forced)
        EXPECT_EQ(text[at++], AfterSevens::kFirst + k);
      --at;
    }
  }
  return forced;
}

void expect_whole(const Harness& run) {
  run.engine.scheduler().check();
  EXPECT_EQ(run.engine.stats().full.used, 0);
  EXPECT_TRUE(run.engine.idle());
}

TEST(TokenOverride, TheSameTokensAloneAndInAnyCompany) {
  const EngineOptions options{.context = 160, .max_rows = 64};
  Harness alone(false, options);
  overridden_load(alone);
  EXPECT_GT(count_forced(alone), 200);
  for (const bool samples : {false, true}) {
    for (const int max_batch : {1, 3, 8}) {
      EngineOptions o = options;
      o.max_batch = max_batch;
      Harness run(samples, o);
      overridden_load(run);
      run.expect_equals(alone);
      expect_whole(run);
      EXPECT_EQ(run.backend.most_in_flight_, samples ? 2u : 1u);
    }
  }
}

// A head's drafts are verified by a device that goes on by itself wherever no override is near.
TEST(TokenOverride, DraftsChangeNothing) {
  for (const bool samples : {false, true}) {
    for (const int tokens : {0, 1, 3, 7}) {
      const EngineOptions options{.context = 160, .max_batch = 3, .max_rows = 64, .draft_tokens = tokens};
      Harness plain(samples, options), drafted(samples, options, true);
      for (Harness* run : {&plain, &drafted}) overridden_load(*run);
      drafted.expect_equals(plain);
      expect_whole(drafted);
      EXPECT_TRUE(tokens == 0 || drafted.engine.stats().speculation.accepted > 20);
    }
  }
}

TEST(TokenOverride, ADraftOfWhatIsForcedIsAccepted) {
  const EngineOptions options{.context = 200, .max_rows = 64};
  for (const bool samples : {false, true}) {
    Harness plain(samples, options), drafted(samples, options);
    for (Harness* run : {&plain, &drafted}) {
      if (run == &drafted) {
        auto oracle = std::make_unique<OracleDrafter>(1, 5);
        oracle->random_lengths = false;
        const Request& known = *plain.requests[0];
        oracle->texts[known.id] = known.tokens;
        run->engine.speculate(std::move(oracle), 4);
      }
      run->submit(10, {.seed = 3, .max_tokens = 81}).sampler->follow(std::make_unique<AfterSevens>());
      ASSERT_TRUE(run->engine.run_to_end().ok());
    }
    drafted.expect_equals(plain);
    EXPECT_EQ(drafted.backend.begun_, 1 + 80 / 5);
  }
}

// Pages are so few that requests are computed again and again.
TEST(TokenOverride, PreemptionChangesNothing) {
  const EngineOptions options{.context = 160, .max_batch = 6, .max_rows = 64};
  EngineOptions tight = options;
  tight.kv_tokens = 160;
  for (const bool samples : {false, true}) {
    for (const bool head : {false, true}) {
      Harness roomy(samples, options, head), run(samples, tight, head);
      for (Harness* one : {&roomy, &run}) overridden_load(*one);
      run.expect_equals(roomy);
      EXPECT_GT(run.engine.stats().preemptions, 0u);
      expect_whole(run);
    }
  }
}

// The log-probability of a token that was forced is the model's for it.
TEST(TokenOverride, LogprobsAreTheModels) {
  Harness run(true, {.context = 200, .max_rows = 64});
  const Request& r = run.submit(10, {.seed = 3, .max_tokens = 80, .top_logprobs = 2});
  r.sampler->follow(std::make_unique<AfterSevens>());
  ASSERT_TRUE(run.engine.run_to_end().ok());
  int unlikely = 0;
  for (size_t i = 0; i < run.received[0].size(); ++i) {
    const double logprob = run.received_logprobs[0][i].logprob;
    const bool forced = logprob < -50;
    EXPECT_NEAR(logprob, forced ? -100 - std::log(kChoices) : -std::log(kChoices), 1e-3);
    EXPECT_TRUE(!forced || run.received[0][i] >= AfterSevens::kFirst);
    unlikely += forced ? 1 : 0;
  }
  EXPECT_GT(unlikely, 4);
}

TEST(TokenOverride, AForcedStopTokenEndsTheText) {
  Harness run(false, {.context = 200, .max_rows = 64});
  run.submit(10, {.seed = 3, .stop_tokens = {AfterSevens::kFirst}})
      .sampler->follow(std::make_unique<AfterSevens>());
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.requests[0]->finish, FinishReason::kStop);
  EXPECT_EQ(run.received[0].back(), AfterSevens::kFirst);
}

}  // namespace
}  // namespace moesaic
