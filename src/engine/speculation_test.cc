// Drafts change how many steps an answer takes, and nothing else.
#include <array>
#include <cmath>

#include "core/choose_token.h"
#include "drafting/model_drafter.h"
#include "drafting/ngram.h"
#include "engine/late_backend.h"
#include "engine/test_drafter.h"

namespace moesaic {
namespace {

// Gives the harness a drafter that knows what the same requests were answered with in `known`.
OracleDrafter& speculate(Harness& run, const Harness& known, double right, int tokens) {
  auto drafter = std::make_unique<OracleDrafter>(right, 5);
  for (size_t i = 0; i < known.requests.size(); ++i) {
    const Request& r = *known.requests[i];
    std::vector<int32_t> text(r.tokens.begin(), r.tokens.begin() + r.prompt_tokens);
    text.insert(text.end(), known.received[i].begin(), known.received[i].end());
    drafter->texts[r.id] = std::move(text);
  }
  OracleDrafter& oracle = *drafter;
  run.engine.speculate(std::move(drafter), tokens);
  return oracle;
}

TEST(Speculation, ARightDraftIsTakenWholeInOneStep) {
  for (const bool samples : {false, true}) {
    const EngineOptions options{.context = 200, .max_rows = 64};
    Harness plain(samples, options), drafted(samples, options);
    plain.submit(10, {.seed = 3, .max_tokens = 41});
    ASSERT_TRUE(plain.engine.run_to_end().ok());
    OracleDrafter& oracle = speculate(drafted, plain, 1, 4);
    oracle.random_lengths = false;
    drafted.submit(10, {.seed = 3, .max_tokens = 41});
    ASSERT_TRUE(drafted.engine.run_to_end().ok());
    drafted.expect_equals(plain);
    // The prompt gives one token, then each step its own and the four drafted.
    EXPECT_EQ(drafted.backend.begun_, 1 + 40 / 5);
    const SpeculationStats s = drafted.engine.stats().speculation;
    EXPECT_EQ(s.drafts, 8u);
    EXPECT_EQ(s.drafted, 32u);
    EXPECT_EQ(s.accepted, 32u);
    EXPECT_EQ(s.accepted_at[3], 8u);
    EXPECT_EQ(s.accepted_at[4], 0u);
    EXPECT_EQ(oracle.ended, 1);
  }
}

// A head without guesses that says of each draft but the first that it took a second.
class SlowHead final : public Drafter {
 public:
  std::string name() const override { return "slow"; }
  bool is_costly() const override { return true; }
  bool follows_steps() const override { return true; }
  bool drafts_ahead() const override { return true; }
  Result<int64_t> begin_draft(std::span<SequenceAhead>, const Batch&) override { return ++begun; }
  Result<double> finish_draft(int64_t draft, std::span<int32_t> tokens) override {
    std::ranges::fill(tokens, -1);
    return draft > 1 ? 1.0 : 0.0;
  }
  Status draft(std::span<DraftTask>) override { return {}; }
  void end(uint64_t, std::span<const int32_t>, int) override {}
  int64_t begun = 0;
};

// The first step's time does not begin with the engine's last step or, before any, with the machine's start:
// against such a time a draft of a second would be cheap.
TEST(Speculation, AnIdleTimeIsNotTheTimeOfAStep) {
  Harness run(true, {.context = 200, .max_rows = 64});
  auto drafter = std::make_unique<SlowHead>();
  const SlowHead& head = *drafter;
  run.engine.speculate(std::move(drafter), 0);
  run.submit(1, {.max_tokens = 20});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_LE(head.begun, 4);
}

TEST(Speculation, TheSameTokensLogprobsAndEnds) {
  for (const bool samples : {false, true}) {
    for (const int max_batch : {1, 3, 8}) {
      const EngineOptions options{.context = 160, .max_batch = max_batch, .max_rows = 64};
      Harness plain(samples, options);
      mixed_load(plain);
      for (const double right : {0.0, 0.6, 1.0}) {
        Harness drafted(samples, options);
        speculate(drafted, plain, right, 7);
        mixed_load(drafted);
        drafted.expect_equals(plain);
        drafted.engine.scheduler().check();
        EXPECT_EQ(drafted.engine.stats().full.used, 0);
        // At eight at a time the arrivals decide how many steps there are.
        EXPECT_TRUE(right == 0 || max_batch == 8 || drafted.backend.begun_ < plain.backend.begun_);
      }
    }
  }
}

// A head, on a device that samples, goes on by itself: beside requests that only the host can sample, that
// end anywhere, and whose log-probabilities are wanted. Drafts of each length, and of as many tokens as pay.
TEST(Speculation, AHeadChangesNoTokenLogprobOrEnd) {
  for (const bool samples : {false, true}) {
    for (const int max_batch : {1, 3, 8}) {
      for (const int tokens : {0, 1, 3, 7}) {
        const EngineOptions options{
            .context = 160, .max_batch = max_batch, .max_rows = 64, .draft_tokens = tokens};
        Harness plain(samples, options), drafted(samples, options, true);
        for (Harness* run : {&plain, &drafted}) mixed_load(*run);
        drafted.expect_equals(plain);
        drafted.engine.scheduler().check();
        EXPECT_EQ(drafted.engine.stats().full.used, 0);
        EXPECT_TRUE(tokens == 0 || drafted.engine.stats().speculation.accepted > 20);
      }
    }
  }
}

TEST(Speculation, LogitsAreShownOncePerToken) {
  const EngineOptions options{.context = 200, .max_rows = 64};
  Harness plain(true, options), drafted(true, options);
  std::vector<std::pair<int, std::vector<float>>> seen[2];
  for (Harness* run : {&plain, &drafted}) {
    if (run == &drafted) speculate(drafted, plain, 0.7, 5);
    auto& shown = seen[run == &drafted ? 1 : 0];
    run->submit(10, {.seed = 3, .max_tokens = 60}).on_logits = [&](int position,
                                                                   std::span<const float> logits) {
      shown.emplace_back(position, std::vector<float>(logits.begin(), logits.end()));
    };
    ASSERT_TRUE(run->engine.run_to_end().ok());
  }
  drafted.expect_equals(plain);
  EXPECT_LT(drafted.backend.begun_, plain.backend.begun_);
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(Speculation, RequestsWithoutDraftsStayInThePipeline) {
  const EngineOptions options{.context = 300, .max_batch = 2, .max_rows = 64};
  Harness plain(true, options), drafted(true, options);
  for (Harness* run : {&plain, &drafted}) {
    if (run == &drafted) speculate(drafted, plain, 1, 5);
    Request& r = run->submit(10, {.seed = 3, .max_tokens = 60});
    r.speculate = false;
    ASSERT_TRUE(run->engine.run_to_end().ok());
  }
  drafted.expect_equals(plain);
  EXPECT_EQ(drafted.backend.most_in_flight_, 2u);
  EXPECT_EQ(drafted.backend.begun_, plain.backend.begun_);
  EXPECT_EQ(drafted.engine.stats().speculation.drafts, 0u);
}

// Where drafts are never right a costly drafter is asked ever more rarely.
TEST(Speculation, ACostlyDrafterIsTriedNowAndThen) {
  const EngineOptions options{.context = 1000, .max_rows = 64};
  Harness plain(false, options), drafted(false, options);
  for (Harness* run : {&plain, &drafted}) {
    if (run == &drafted) speculate(drafted, plain, 0, 0).costly = true;
    run->submit(10, {.temperature = 0, .max_tokens = 900});
    ASSERT_TRUE(run->engine.run_to_end().ok());
  }
  drafted.expect_equals(plain);
  EXPECT_GT(drafted.engine.stats().speculation.drafts, 0u);
  EXPECT_LT(drafted.engine.stats().speculation.drafts, 60u);
}

TEST(Speculation, TheDrafterHearsOfTheRowsThatHold) {
  for (const bool samples : {false, true}) {
    const EngineOptions options{.context = 200, .max_rows = 64};
    Harness plain(samples, options), drafted(samples, options);
    for (Harness* run : {&plain, &drafted}) {
      OracleDrafter* oracle = run == &drafted ? &speculate(drafted, plain, 0.6, 5) : nullptr;
      const Request& r = run->submit(100, {.seed = 3, .max_tokens = 60});
      ASSERT_TRUE(run->engine.run_to_end().ok());
      if (oracle == nullptr) continue;
      // All but the last token, which nothing was computed behind.
      EXPECT_EQ(oracle->reached[r.id], 159);
    }
  }
}

// Whenever a request that the host samples comes in: its first step is launched while a token is in flight,
// which may turn out to be the last of its request.
TEST(Speculation, TheDrafterHearsOfNoRowBehindTheEnd) {
  const EngineOptions options{.context = 200, .max_batch = 2, .max_rows = 64};
  Harness plain(true, options);
  plain.submit(10, {.seed = 3, .max_tokens = 8});
  ASSERT_TRUE(plain.engine.run_to_end().ok());
  const std::vector<int32_t>& answer = plain.received[0];
  ASSERT_EQ(std::find(answer.begin(), answer.end(), answer.back()), answer.end() - 1);
  for (int step = 0; step < 12; ++step) {
    Harness run(true, options);
    const OracleDrafter& oracle = speculate(run, plain, 1, 0);
    Request& stops = run.submit(10, {.seed = 3, .max_tokens = 20, .stop_tokens = {answer.back()}});
    stops.speculate = false;
    for (int i = 0; i < step; ++i) ASSERT_TRUE(run.engine.step().ok());
    run.submit(10, {.max_tokens = 4}).on_logits = [](int, std::span<const float>) {};
    ASSERT_TRUE(run.engine.run_to_end().ok());
    EXPECT_EQ(stops.finish, FinishReason::kStop);
    EXPECT_EQ(oracle.reached.at(stops.id), std::ssize(stops.tokens));
  }
}

// A head that was given every row with the token behind it is always right: through chunks of prompts,
// preemptions, company and lengths that end anywhere in a page.
TEST(Speculation, AHeadIsGivenEveryRow) {
  for (const bool samples : {false, true}) {
    for (const int max_batch : {1, 4}) {
      EngineOptions options{.context = 300,
                            .max_batch = max_batch,
                            .max_rows = 24,
                            .kv_tokens = 512,
                            .prefix_cache = false,
                            .draft_tokens = 5};
      Harness plain(samples, options), drafted(samples, options, true);
      for (Harness* run : {&plain, &drafted}) {
        for (int i = 0; i < 8; ++i)
          run->submit(1 + 33 * i, {.temperature = i % 2 == 0 ? 0.0 : 1.0,
                                   .seed = static_cast<uint64_t>(i),
                                   .max_tokens = 20 + 30 * i});
        ASSERT_TRUE(run->engine.run_to_end().ok());
      }
      drafted.expect_equals(plain);
      EXPECT_TRUE(max_batch == 1 || drafted.engine.stats().preemptions > 0);
      // A device that samples never waits for the host.
      EXPECT_EQ(drafted.backend.most_in_flight_, samples ? 2u : 1u);
      const SpeculationStats s = drafted.engine.stats().speculation;
      EXPECT_GT(s.accepted, max_batch == 1 ? 500u : 200u);
      EXPECT_EQ(s.accepted, s.drafted);
    }
  }
}

// A head's cache has what the prefix cache has. The last place of a shared beginning was made with
// another text's next token, so this head errs from there on; where a text goes on as before it does not.
TEST(Speculation, AHeadFindsWhatThePrefixCacheHas) {
  const EngineOptions options{.context = 300, .max_rows = 64, .draft_tokens = 5};
  Harness run(false, options, true);
  run.submit(100, {.temperature = 0, .max_tokens = 40});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  const Request& again =
      run.submit(std::vector<int32_t>(run.requests[0]->tokens), {.temperature = 0, .max_tokens = 40});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(again.reused, 128);
  EXPECT_EQ(again.drafted.stats.accepted, again.drafted.stats.drafted);
  EXPECT_GT(again.drafted.stats.accepted, 30u);
}

// Two that say the same at the same time come to share their pages while they run.
TEST(Speculation, AHeadDraftsForTwoThatShareTheirPages) {
  const EngineOptions options{.context = 300, .max_batch = 2, .max_rows = 64, .draft_tokens = 5};
  Harness run(false, options, true);
  for (int i = 0; i < 2; ++i) run.submit(40, {.temperature = 0, .max_tokens = 120});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.received[0], run.received[1]);
  for (const auto& r : run.requests) {
    EXPECT_EQ(r->drafted.stats.accepted, r->drafted.stats.drafted);
    EXPECT_GT(r->drafted.stats.accepted, 80u);
  }
}

// The drafts of a model that says what the target says are all right, whatever was taken back, cut into steps
// or given up before; those of another one are wrong and change nothing. More requests than its cache
// holds at a time: each gives its pages back.
TEST(Speculation, AModelDraftsForAnother) {
  for (const bool samples : {false, true}) {
    for (const bool same : {true, false}) {
      const EngineOptions options{.context = 400, .max_batch = 3, .max_rows = 32, .kv_tokens = 600};
      Harness plain(samples, options), drafted(samples, options);
      auto model = std::make_unique<LateBackend>(samples);
      ModelConfig config = drafted.config;
      if (!same) config.window /= 2;  // it says something else
      ASSERT_TRUE(model->load(config, {}, {}).ok());
      drafted.engine.speculate(
          ModelDrafter::create(std::move(model), config, {.sequences = 3, .kv_tokens = 600, .max_rows = 32})
              .value(),
          5);
      for (Harness* run : {&plain, &drafted}) {
        for (int i = 0; i < 12; ++i)
          run->submit(
              1 + 29 * i,
              {.temperature = i % 2 == 0 ? 0.0 : 1.0, .seed = static_cast<uint64_t>(i), .max_tokens = 80});
        ASSERT_TRUE(run->engine.run_to_end().ok());
      }
      drafted.expect_equals(plain);
      const SpeculationStats s = drafted.engine.stats().speculation;
      EXPECT_TRUE(same ? s.accepted == s.drafted : s.accepted < s.drafted / 20)
          << s.accepted << " of " << s.drafted;
      EXPECT_GT(s.drafted, 500u);
      EXPECT_GT(drafted.requests.back()->drafted.stats.drafts, 5u);
    }
  }
}

// The next turn of a conversation: its beginning is not computed again, as long as the sliding window's pages
// before it are still there. Drafts stay right.
TEST(Speculation, ADraftModelGoesOnFromAnEarlierText) {
  for (const int answer : {40, 300}) {  // the second is longer than the ring of a window and a step
    for (const bool keeps_answer : {true, false}) {
      SCOPED_TRACE(testing::Message() << answer << (keeps_answer ? " with" : " without") << " the answer");
      const EngineOptions options{.context = 900, .max_batch = 1, .max_rows = 64};
      Harness run(false, options);
      auto model = std::make_unique<LateBackend>(false);
      ASSERT_TRUE(model->load(run.config, {}, {}).ok());
      int rows = 0;
      model->when_begun_ = [&](const Batch& b) { rows += b.rows(); };
      run.engine.speculate(ModelDrafter::create(std::move(model), run.config,
                                                {.sequences = 1, .kv_tokens = 900, .max_rows = 64})
                               .value(),
                           4);
      const Request& first = run.submit(200, {.temperature = 0, .max_tokens = answer});
      ASSERT_TRUE(run.engine.run_to_end().ok());
      std::vector<int32_t> turn = first.tokens;
      if (!keeps_answer) turn.resize(200);
      const auto known = static_cast<int>(turn.size());
      for (int32_t i = 0; i < 30; ++i) turn.push_back((7 * i + 3) % kVocab);
      rows = 0;
      const Request& second = run.submit(turn, {.temperature = 0, .max_tokens = 30});
      ASSERT_TRUE(run.engine.run_to_end().ok());
      EXPECT_GT(second.drafted.stats.accepted, 5u);
      EXPECT_EQ(second.drafted.stats.accepted, second.drafted.stats.drafted);
      const bool goes_on = keeps_answer || answer == 40;
      EXPECT_EQ(rows < known, goes_on) << rows << " rows";
      // Another text finds nothing to go on from.
      rows = 0;
      const Request& other = run.submit(150, {.temperature = 0, .max_tokens = 10});
      ASSERT_TRUE(run.engine.run_to_end().ok());
      EXPECT_GE(rows, 150);
      EXPECT_EQ(other.drafted.stats.accepted, other.drafted.stats.drafted);
    }
  }
}

// Otherwise the time of an answer would tell what others have sent.
TEST(Speculation, ADraftModelGoesOnFromTextsOfTheSameSaltAlone) {
  Harness run(false, {.context = 900, .max_batch = 1, .max_rows = 64});
  auto model = std::make_unique<LateBackend>(false);
  ASSERT_TRUE(model->load(run.config, {}, {}).ok());
  int rows = 0;
  model->when_begun_ = [&](const Batch& b) { rows += b.rows(); };
  run.engine.speculate(
      ModelDrafter::create(std::move(model), run.config, {.sequences = 3, .kv_tokens = 2700, .max_rows = 64})
          .value(),
      4);
  const auto rows_of = [&](const std::string& salt) {
    auto r = run.engine
                 .prepare(std::vector<int32_t>(400, 7), {.temperature = 0, .max_tokens = 20},
                          [](const SampledToken&) {})
                 .value();
    r->pages.salt = salt;
    rows = 0;
    run.engine.add(r);
    EXPECT_TRUE(run.engine.run_to_end().ok());
    return rows;
  };
  const int whole = rows_of("alice");
  EXPECT_GE(whole, 400);
  EXPECT_EQ(rows_of("bob"), whole);
  EXPECT_EQ(rows_of({}), whole);
  EXPECT_LT(rows_of("alice"), 100);
}

// Two requests fill the pages; drafts may use what is left and take nothing from anybody.
TEST(Speculation, DraftsPreemptNobody) {
  const EngineOptions options{
      .context = 128, .max_batch = 3, .max_rows = 64, .kv_tokens = 160, .prefix_cache = false};
  Harness plain(false, options), drafted(false, options);
  for (Harness* run : {&plain, &drafted}) {
    if (run == &drafted) speculate(drafted, plain, 0, 16);
    for (int i = 0; i < 3; ++i) run->submit(20 + i, {.temperature = 0});
    while (!run->engine.idle()) {
      ASSERT_TRUE(run->engine.step().ok());
      run->engine.scheduler().check();
    }
  }
  drafted.expect_equals(plain);
  EXPECT_EQ(drafted.engine.stats().preemptions, plain.engine.stats().preemptions);
  EXPECT_EQ(drafted.backend.begun_, plain.backend.begun_);
  EXPECT_GT(drafted.engine.stats().speculation.drafted, 100u);
}

TEST(Speculation, RowsOfPromptsComeFirst) {
  const EngineOptions options{.context = 400, .max_batch = 4, .max_rows = 16};
  Harness plain(false, options), drafted(false, options);
  for (Harness* run : {&plain, &drafted}) {
    if (run == &drafted) speculate(drafted, plain, 0, 16);
    run->submit(10, {.temperature = 0});
    while (run->received[0].empty()) ASSERT_TRUE(run->engine.step().ok());
    run->submit(300, {.temperature = 0, .max_tokens = 1});
    while (run->received[1].empty()) ASSERT_TRUE(run->engine.step().ok());
  }
  EXPECT_EQ(drafted.backend.begun_, plain.backend.begun_);
}

using Choices = std::array<float, kChoices>;  // logits of the tokens from some first one on

// Chooses as a draft head does: by its own logits, with the random numbers that the model will use. A draft
// that changed the answer would be seen in the frequencies.
class SamplingDrafter final : public Drafter {
 public:
  SamplingDrafter(int32_t first, const Choices& logits, double temperature)
      : first_(first), logits_(logits), temperature_(temperature) {}
  std::string name() const override { return "sampling"; }
  bool is_costly() const override { return true; }  // so that tasks say how tokens will be sampled
  Status draft(std::span<DraftTask> tasks) override {
    for (DraftTask& task : tasks) {
      for (DeviceSampling& sampling : task.sampling) {
        sampling.temperature = temperature_;
        task.draft.push_back(first_ + choose_token(logits_, {}, sampling));
      }
    }
    return {};
  }
  void end(uint64_t, std::span<const int32_t>, int) override {}

 private:
  int32_t first_;
  Choices logits_;
  double temperature_;
};

// Pearson's statistic of pairs of tokens that are drawn independently, by these logits.
double chi_squared_of_pairs(const std::vector<std::vector<int32_t>>& answers, int32_t first,
                            const Choices& logits) {
  double pairs[kChoices][kChoices] = {}, draws = 0, total = 0;
  for (const auto& tokens : answers) {
    for (size_t i = 0; i + 1 < tokens.size(); i += 2, ++draws)
      pairs[tokens[i] - first][tokens[i + 1] - first] += 1;
  }
  for (const float logit : logits) total += std::exp(double{logit});
  double chi_squared = 0;
  for (int a = 0; a < kChoices; ++a) {
    for (int b = 0; b < kChoices; ++b) {
      const double want = draws * std::exp(double{logits[a]} + double{logits[b]}) / total / total;
      chi_squared += (pairs[a][b] - want) * (pairs[a][b] - want) / want;
    }
  }
  return chi_squared;
}

// 10^5 draws over eight tokens of known probability. The drafter's distribution is the model's at
// temperature 2.
TEST(Speculation, TheDistributionIsUnchanged) {
  constexpr int kRequests = 500, kTokens = 200;
  constexpr int32_t kFirst = 100;
  Choices model, drafter;
  for (int i = 0; i < kChoices; ++i) {
    model[i] = -0.4f * static_cast<float>(i);
    drafter[i] = 2 * model[i];
  }
  for (const double temperature : {0.0, 1.0, 2.0, 4.0}) {
    SCOPED_TRACE(temperature);
    Harness run(false, {.context = 256, .max_batch = 16, .max_rows = 64});
    run.backend.weights_ = model;
    run.backend.fixed_first_ = kFirst;
    run.engine.speculate(std::make_unique<SamplingDrafter>(kFirst, drafter, temperature), 3);
    for (int i = 0; i < kRequests; ++i)
      run.submit(8, {.seed = static_cast<uint64_t>(i) * 7919 + static_cast<uint64_t>(temperature),
                     .max_tokens = kTokens});
    ASSERT_TRUE(run.engine.run_to_end().ok());
    for (const auto& tokens : run.received) ASSERT_EQ(tokens.size(), static_cast<size_t>(kTokens));
    const double chi_squared = chi_squared_of_pairs(run.received, kFirst, model);
    EXPECT_LT(chi_squared, 92.01);  // p = 0.01 at 63 degrees of freedom
    const SpeculationStats& s = run.engine.stats().speculation;
    EXPECT_GT(s.accepted, 20000u);
    EXPECT_TRUE(temperature == 2 || s.accepted < s.drafted * 9 / 10);
    std::printf("drafts at temperature %.1f: chi-squared %.1f, %llu of %llu accepted\n", temperature,
                chi_squared, static_cast<unsigned long long>(s.accepted),
                static_cast<unsigned long long>(s.drafted));
  }
}

TEST(Speculation, ATextThatRepeatsItselfIsDraftedFromItself) {
  const EngineOptions options{.context = 400, .max_rows = 64};
  Harness plain(false, options), drafted(false, options);
  drafted.engine.speculate(std::make_unique<NgramDrafter>(), 8);
  for (Harness* run : {&plain, &drafted}) {
    run->backend.fixed_first_ = 30;
    run->submit(10, {.temperature = 0, .max_tokens = 100});
    run->submit(10, {.temperature = 1, .seed = 2, .max_tokens = 100});
    ASSERT_TRUE(run->engine.run_to_end().ok());
  }
  drafted.expect_equals(plain);
  EXPECT_GT(drafted.requests[0]->drafted.stats.accepted, 80u);
}

}  // namespace
}  // namespace moesaic
