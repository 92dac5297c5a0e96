// An engine whose backend draws the tokens itself and runs behind the host gives what one gives that waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "engine/engine.h"

namespace moesaic {
namespace {

constexpr int kVocab = 500, kChoices = 8, kPage = 32;

// A model whose next token depends on every token in the cache: eight equally likely ones, whose first is a
// hash of all that the page table leads to. With draws a step runs when it is asked for its tokens and not
// before, as late as any device may.
class LateBackend final : public Backend {
 public:
  explicit LateBackend(bool draws) : draws_(draws) {}
  BackendCaps caps() const override { return {.name = "late"}; }
  double kv_token_bytes(const ModelConfig&) const override { return 1; }
  std::vector<MemoryPart> memory(const ModelConfig&, const ModelWeights&, const KvLayout&) override {
    return {};
  }
  Status load(const ModelConfig& config, const ModelWeights&, const LoadProgress&) override {
    config_ = config;
    return {};
  }
  Status alloc_kv(const KvLayout& layout) override {
    layout_ = layout;
    cache_.assign(static_cast<size_t>(layout.full_pages) * kPage, -1);
    return {};
  }
  bool can_draw() const override { return draws_; }
  Status begin_step(const Batch& batch) override {
    Status valid = validate(batch, config_, layout_, 64);
    if (!valid.ok()) return valid;
    steps_.push_back(batch);
    most_under_way_ = std::max(most_under_way_, steps_.size());
    ++begun_;
    return {};
  }
  void embed() override {}
  void qkv(int) override {}
  void attend(int) override {}
  void project(int) override {}
  void moe(int) override {}
  void unembed(std::span<float> logits) override { logits_ = logits; }
  Status end_step() override {
    if (!steps_.back().draws.empty()) return {};
    // The steps before this one run first; what they draw is asked for later.
    for (; steps_.size() > 1; steps_.pop_front()) told_.push_back(draw(steps_.front()));
    const std::vector<int32_t> first = run(steps_.front());
    steps_.pop_front();
    std::fill(logits_.begin(), logits_.end(), -100.0f);
    for (size_t i = 0; i < first.size(); ++i)
      std::fill_n(logits_.begin() + static_cast<int64_t>(i) * kVocab + first[i], kChoices, 0.0f);
    return {};
  }
  Status drawn(std::span<int32_t> tokens) override {
    if (fail_at_ == begun_) {
      steps_.clear();
      return {StatusCode::kInternal, "a fault"};
    }
    if (told_.empty()) {
      told_.push_back(draw(steps_.front()));
      steps_.pop_front();
    }
    EXPECT_EQ(told_.front().size(), tokens.size());
    std::copy(told_.front().begin(), told_.front().end(), tokens.begin());
    told_.pop_front();
    return {};
  }

  size_t most_under_way_ = 0;
  int begun_ = 0, fail_at_ = -1;

 private:
  // The first choice of every wanted row.
  std::vector<int32_t> run(const Batch& b) {
    std::vector<int32_t> first;
    for (const Sequence& s : b.sequences) {
      for (int row = s.first_row; row < s.first_row + s.rows; ++row) {
        const auto slot = [&](int position) -> int32_t& {
          return cache_[s.full_pages[position / kPage] * kPage + position % kPage];
        };
        slot(b.positions[row]) = b.drawn.empty() || b.drawn[row] < 0 ? b.tokens[row] : last_[b.drawn[row]];
        uint64_t hash = 7;
        for (int p = 0; p <= b.positions[row]; ++p) hash = (hash ^ slot(p)) * 0x9E3779B97F4A7C15u;
        if (std::find(b.logit_rows.begin(), b.logit_rows.end(), row) != b.logit_rows.end())
          first.push_back(static_cast<int32_t>((hash >> 33) % (kVocab - kChoices)));
      }
    }
    return first;
  }
  std::vector<int32_t> draw(const Batch& b) {
    last_ = run(b);
    for (size_t i = 0; i < last_.size(); ++i) {
      if (b.draws[i].temperature > 0) last_[i] += static_cast<int32_t>(b.draws[i].uniform * kChoices);
    }
    return last_;
  }

  bool draws_;
  ModelConfig config_;
  KvLayout layout_;
  std::vector<int32_t> cache_;
  std::deque<Batch> steps_;
  std::deque<std::vector<int32_t>> told_;
  std::vector<int32_t> last_;  // the tokens drawn last
  std::span<float> logits_;
};

struct Harness {
  ModelConfig config{
      .layers = 2, .vocab = kVocab, .window = 64, .sliding = {true, false}, .max_context = 2048};
  LateBackend backend;
  Engine engine;
  std::vector<std::shared_ptr<Request>> requests;
  std::vector<std::vector<int32_t>> told;  // to each request's callback

  static Engine make(LateBackend& backend, const ModelConfig& config, const EngineOptions& options) {
    EXPECT_TRUE(backend.load(config, {}, {}).ok());
    return Engine::create(backend, config, options).value();
  }
  Harness(bool draws, const EngineOptions& options)
      : backend(draws), engine(make(backend, config, options)) {}

  // cancel_at: the callback says so at this many tokens.
  Request& submit(int prompt_tokens, const SamplingParams& params, int cancel_at = 0) {
    std::vector<int32_t> prompt(prompt_tokens);
    for (int i = 0; i < prompt_tokens; ++i) prompt[i] = (prompt_tokens * 31 + i * i) % kVocab;
    return submit(std::move(prompt), params, cancel_at);
  }
  Request& submit(std::vector<int32_t> prompt, const SamplingParams& params, int cancel_at = 0) {
    const size_t index = told.size();
    told.emplace_back();
    requests.push_back(engine
                           .submit(std::move(prompt), params,
                                   [this, index, cancel_at](const SampledToken& t) {
                                     told[index].push_back(t.token);
                                     return std::ssize(told[index]) != cancel_at;
                                   })
                           .value());
    return *requests.back();
  }
  void expect_equals(const Harness& other) const {
    ASSERT_EQ(requests.size(), other.requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(requests[i]->tokens, other.requests[i]->tokens) << i;
      EXPECT_EQ(requests[i]->finish, other.requests[i]->finish) << i;
      // The step that ran on behind a cancelled request computed its last token.
      EXPECT_GE(requests[i]->reused, other.requests[i]->reused) << i;
      EXPECT_LE(requests[i]->reused, other.requests[i]->reused + 1) << i;
      EXPECT_EQ(told[i], other.told[i]) << i;
    }
  }
};

std::vector<int32_t> many_stops() {
  std::vector<int32_t> stops;
  for (int32_t t = 0; t < kVocab; t += 9) stops.push_back(t);
  return stops;
}

// Long and short prompts, seeds, stop tokens, cancelling callbacks, a full context, arrivals on the way, and
// one that only the host can sample.
void mixed_load(Harness& run) {
  for (int i = 0; i < 40; ++i) {
    SamplingParams p{.temperature = i % 3 == 0 ? 0.0 : 1.0, .seed = static_cast<uint64_t>(i)};
    p.max_tokens = i % 4 == 1 ? 1 + i % 7 : 0;
    if (i % 4 != 1) p.stop_tokens = many_stops();
    if (i % 10 == 9) p.frequency_penalty = 0.5;
    run.submit(1 + (i * 37) % 150, p, i % 5 == 4 ? 3 : 0);
    for (int s = 0; s < i % 4; ++s) ASSERT_TRUE(run.engine.step().ok());
  }
  ASSERT_TRUE(run.engine.run_to_end().ok());
}

TEST(Draws, TheSameTokensAsWaitingForEveryStep) {
  for (const int max_batch : {1, 3, 8}) {
    const EngineOptions options{.context = 160, .max_batch = max_batch, .max_rows = 64};
    Harness waiting(false, options), drawing(true, options);
    const int pages = drawing.engine.scheduler().pages().free_full();
    mixed_load(waiting), mixed_load(drawing);
    drawing.expect_equals(waiting);
    EXPECT_EQ(drawing.backend.most_under_way_, 2u);
    EXPECT_EQ(drawing.engine.scheduler().pages().free_full(), pages);
    EXPECT_TRUE(drawing.engine.idle());
  }
}

TEST(Draws, WhatAStepTooManyLeftIsNotReused) {
  const EngineOptions options{.context = 400, .max_rows = 64, .reuse = true};
  Harness waiting(false, options), drawing(true, options);
  for (Harness* run : {&waiting, &drawing}) {
    std::vector<int32_t> prompt(30, 5);
    for (int turn = 0; turn < 12; ++turn) {
      const Request& r = run->submit(prompt, {.seed = 3, .max_tokens = 20, .stop_tokens = many_stops()},
                                     turn % 3 == 2 ? 2 : 0);
      ASSERT_TRUE(run->engine.run_to_end().ok());
      prompt = r.tokens;
      prompt.push_back(turn);
    }
  }
  drawing.expect_equals(waiting);
  EXPECT_GT(drawing.requests.back()->reused, 30);
}

TEST(Draws, CancellingCountsFromTheNextStepOn) {
  Harness run(true, {.context = 300, .max_batch = 2, .max_rows = 64});
  Request& a = run.submit(10, {.temperature = 0});
  run.submit(10, {.temperature = 0, .max_tokens = 40});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(run.engine.step().ok());
  EXPECT_EQ(a.generated(), 4);  // the fifth is under way
  a.cancelled = true;
  ASSERT_TRUE(run.engine.step().ok());
  EXPECT_EQ(a.finish, FinishReason::kCancelled);
  EXPECT_EQ(run.told[0].size(), 4u);
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.told[1].size(), 40u);
}

TEST(Draws, AnEndKnownBeforehandComputesNothingMore) {
  Harness run(true, {.context = 100, .max_rows = 64});
  run.submit(10, {.temperature = 0, .max_tokens = 7});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.backend.begun_, 7);
  run.submit(90, {.temperature = 0});  // to the end of the context: 64 rows, 26 rows, 9 tokens more
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.requests[1]->tokens.size(), 100u);
  EXPECT_EQ(run.backend.begun_, 7 + 2 + 9);
}

TEST(Draws, AFaultEndsEveryRequestAndTheEngineGoesOn) {
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
  EXPECT_EQ(std::vector<int32_t>(run.told[0].begin(), run.told[0].begin() + 3), run.told[2]);
}

}  // namespace
}  // namespace moesaic
