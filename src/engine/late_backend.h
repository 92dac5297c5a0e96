// For tests: a backend without a model, and an engine on it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>

#include "backend/host_kv_copier.h"
#include "base/error.h"
#include "core/choose_token.h"
#include "drafting/make_drafter.h"
#include "engine/engine.h"
#include "engine/late_head.h"
#include "engine/sampler.h"

namespace moesaic {

inline constexpr int kVocab = 500, kChoices = 8;

// A model whose next token depends on every token in the cache: eight equally likely ones, whose first is a
// hash of all that the page tables lead to. When it samples, a step runs when it is asked for its tokens and
// not before, as late as any device may.
class LateBackend final : public Backend {
 public:
  explicit LateBackend(bool samples) : samples_(samples) {}
  BackendCaps caps() const override { return {.name = "late"}; }
  DeviceInfo device() const override { return host_device(device_); }
  double kv_token_bytes(const ModelConfig&) const override { return token_bytes_; }
  std::vector<MemoryPart> memory(const ModelConfig&, const ModelWeights&, const KvLayout&) override {
    return {};
  }
  Status load(const ModelConfig& config, const ModelWeights&, const LoadProgress&) override {
    config_ = config;
    return {};
  }
  Status alloc_kv(const KvLayout& layout) override {
    layout_ = layout;
    if (head_) head_->alloc_kv(layout);
    full_.assign(static_cast<size_t>(layout.full_pages) * kPageTokens, 0);
    window_.assign(static_cast<size_t>(layout.window_pages) * kPageTokens, 0);
    return {};
  }
  std::string kv_page_format() const override { return "late"; }
  size_t kv_page_bytes() const override { return kPageTokens * sizeof(uint64_t); }
  Status read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) override {
    if (when_read_) when_read_();
    std::memcpy(bytes.data(), page_of(layer, page), bytes.size());
    return {};
  }
  Status write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) override {
    std::memcpy(page_of(layer, page), bytes.data(), bytes.size());
    return {};
  }
  std::unique_ptr<KvCopier> kv_copier() override { return std::make_unique<HostKvCopier>(*this); }
  bool can_sample() const override { return samples_; }
  bool can_edit() const override { return edits_; }
  Status edit_rows(std::span<const EditedRow> rows) override {
    MOESAIC_CHECK(!steps_.empty() && !steps_.back().sampling.empty());
    edited_.back().assign(rows.begin(), rows.end());
    if (when_edited_) when_edited_(rows);
    return {};
  }
  Status begin_step(const Batch& batch) override {
    RETURN_IF_ERROR(validate(batch, config_, layout_, 256));
    if (when_begun_) when_begun_(batch);
    steps_.push_back(batch);
    edited_.emplace_back();
    most_in_flight_ = std::max(most_in_flight_, steps_.size());
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
    if (!steps_.back().sampling.empty()) return {};
    // The steps before this one run first; their tokens are asked for later.
    while (steps_.size() > 1) sample_first();
    before_ = begin_run(steps_.front(), before_);
    const std::vector<int32_t> first = run(before_.batch);
    steps_.pop_front(), edited_.pop_front();
    for (size_t i = 0; i < first.size(); ++i) put_logits(first[i], logits_.subspan(i * kVocab, kVocab));
    return {};
  }
  Status forget_steps() override {
    if (when_forgotten_) when_forgotten_();
    drop_steps();
    return {};
  }
  Status sampled(std::span<SampledToken> tokens, std::span<float> logits) override {
    if (fail_at_ == begun_) {
      drop_steps();
      return {StatusCode::kInternal, "a fault"};
    }
    if (results_.empty()) sample_first();
    const StepResult& result = results_.front();
    EXPECT_EQ(result.tokens.size(), tokens.size());
    EXPECT_EQ(result.host_first.size() * kVocab, logits.size());
    std::copy(result.tokens.begin(), result.tokens.end(), tokens.begin());
    for (size_t i = 0; i < result.host_first.size(); ++i)
      put_logits(result.host_first[i], logits.subspan(i * kVocab, kVocab));
    results_.pop_front();
    return {};
  }

  DraftHead* draft_head() override { return head_.get(); }
  // From the next alloc_kv() on it has a draft head.
  void add_head() {
    head_ = std::make_unique<LateHead>(
        kVocab, kVocab - kChoices, config_.window,
        [this](int32_t first, std::span<float> logits) { put_logits(first, logits); },
        samples_ ? [this]() -> const Batch* { return steps_.empty() ? nullptr : &steps_.back(); }
                 : LateHead::LastStep());
  }

  // The logits of the eight choices, for the host to sample from, and their first one where it is the same
  // behind every text; -1: it is a hash of the text.
  std::array<float, kChoices> weights_{};
  int32_t fixed_first_ = -1;
  size_t most_in_flight_ = 0;
  int begun_ = 0, fail_at_ = -1;
  std::string device_ = "late";
  double token_bytes_ = 1;
  std::function<void(const Batch&)> when_begun_;
  std::function<void()> when_read_, when_forgotten_;  // by a copier; by the engine
  bool edits_ = false;                                // before an engine is made of it
  std::function<void(std::span<const EditedRow>)> when_edited_;

 private:
  void drop_steps() {
    steps_.clear(), edited_.clear(), results_.clear();
    if (head_) head_->forget();
  }
  uint64_t* page_of(int layer, int32_t page) {
    auto& pages = config_.sliding[static_cast<size_t>(layer)] ? window_ : full_;
    return pages.data() + static_cast<size_t>(page) * kPageTokens;
  }
  // The first choice of every wanted row.
  std::vector<int32_t> run(const Batch& b) {
    std::vector<int32_t> first;
    std::vector<uint64_t> hidden;
    for (const Sequence& s : b.sequences) {
      for (int row = s.first_row; row < s.first_row + s.rows; ++row) {
        const int position = b.positions[row];
        const auto full = [&](int p) -> uint64_t& {
          return full_[s.full_pages[p / kPageTokens] * kPageTokens + p % kPageTokens];
        };
        const auto window = [&](int p) -> uint64_t& {
          return window_[s.window_pages[p / kPageTokens] * kPageTokens + p % kPageTokens];
        };
        full(position) = window(position) = mix(position > 0 ? full(position - 1) : 0, b.tokens[row]);
        hidden.push_back(full(position));
        if (std::find(b.logit_rows.begin(), b.logit_rows.end(), row) == b.logit_rows.end()) continue;
        uint64_t hash = 7;
        for (int p = 0; p <= position; ++p) hash = mix(hash, full(p));
        for (int p = std::max(0, position - config_.window + 1); p <= position; ++p)
          hash = mix(hash, window(p));
        first.push_back(static_cast<int32_t>((hash >> 33) % (kVocab - kChoices)));
      }
    }
    if (head_) head_->keep(b, std::move(hidden));
    return first;
  }
  void put_logits(int32_t first, std::span<float> logits) const {
    std::fill(logits.begin(), logits.end(), -100.0f);
    std::copy(weights_.begin(), weights_.end(), logits.begin() + (fixed_first_ < 0 ? first : fixed_first_));
  }
  // The results of a sampling step: its tokens, and the first choice of each row that the host samples.
  struct StepResult {
    std::vector<SampledToken> tokens;
    std::vector<int32_t> host_first;
  };
  void sample_first() {
    results_.push_back(sample(steps_.front(), edited_.front()));
    steps_.pop_front(), edited_.pop_front();
  }
  // Samples as a device does that changes the logits of some rows first.
  int32_t sample(int32_t first, const EditedRow& row) const {
    std::vector<float> logits(kVocab);
    put_logits(first, logits);
    apply_edits(row.edits, logits);
    return choose_token(logits, {}, row.sampling);
  }
  StepResult sample(const Batch& queued, const std::vector<EditedRow>& edited) {
    RunStep step = begin_run(queued, before_);
    std::vector<int32_t> tokens = run(step.batch);
    StepResult result;
    for (const int32_t row : step.batch.host_rows) result.host_first.push_back(tokens[row]);
    std::vector<SampledToken>& sampled = result.tokens;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t first = tokens[i];
      const DeviceSampling& params = step.batch.sampling[i];
      const auto change = std::ranges::find(edited, static_cast<int32_t>(i), &EditedRow::row);
      tokens[i] = change != edited.end() ? sample(first, *change) : sample(first, {.sampling = params});
      sampled.push_back({.token = tokens[i]});
      if (params.logprobs < 0) continue;
      std::vector<float> logits(kVocab);
      put_logits(first, logits);
      sampled[i].logprobs = logprobs_of(logits, tokens[i], params.logprobs);
    }
    end_run(step, std::move(tokens));
    if (head_) head_->run(&queued, step);
    before_ = std::move(step);
    return result;
  }

  bool samples_;
  std::unique_ptr<LateHead> head_;
  ModelConfig config_;
  KvLayout layout_;
  std::vector<uint64_t> full_, window_;  // for each position a hash of the tokens up to it
  std::deque<Batch> steps_;
  std::deque<std::vector<EditedRow>> edited_;  // for each of these steps
  std::deque<StepResult> results_;
  RunStep before_;  // the step that ran last
  std::span<float> logits_;
};

struct Harness {
  ModelConfig config;
  LateBackend backend;
  Engine engine;
  std::string client;  // for requests that are submitted from now on
  std::vector<std::shared_ptr<Request>> requests;
  std::vector<std::stop_source> cancels;       // for each request
  std::vector<std::vector<int32_t>> received;  // to each request's callback
  std::vector<std::vector<TokenLogprobs>> received_logprobs;

  static Engine make(LateBackend& backend, const ModelConfig& config, const EngineOptions& options, bool head,
                     bool edits) {
    EXPECT_TRUE(backend.load(config, {}, {}).ok());
    backend.edits_ = edits;
    if (head) backend.add_head();
    return Engine::create(backend, config, options,
                          head ? make_drafter(DrafterKind::kEagle3, backend.draft_head()) : nullptr)
        .value();
  }
  // head: drafts come from the backend's draft head.
  // edits: the backend changes logits before it samples. window: of the sliding layers, in tokens.
  Harness(bool samples, const EngineOptions& options, bool head = false, bool edits = false, int window = 64)
      : config{.layers = 2, .vocab = kVocab, .window = window, .sliding = {true, false}, .max_context = 2048},
        backend(samples),
        engine(make(backend, config, options, head, edits)) {}

  // Blocks outlive their pages from here on; before any request.
  // The store has several readers on any machine, and time for what it reads.
  const KvStore* keep(KvStoreOptions where, uint64_t fingerprint = 1) {
    if (where.readers == 0) where.readers = 3;
    where.least_patience = std::chrono::minutes(1);
    auto tiers = KvTiers::open(where);
    EXPECT_TRUE(tiers.ok()) << tiers.status().message();
    EXPECT_EQ(engine.keep(std::move(tiers).value(), fingerprint).message(), "");
    return engine.store();
  }
  // cancel_at: the callback cancels the request at this many tokens.
  Request& submit(int prompt_tokens, const SamplingParams& params, int cancel_at = 0) {
    std::vector<int32_t> prompt(prompt_tokens);
    for (int i = 0; i < prompt_tokens; ++i) prompt[i] = (prompt_tokens * 31 + i * i) % kVocab;
    return submit(std::move(prompt), params, cancel_at);
  }
  Request& submit(std::vector<int32_t> prompt, const SamplingParams& params, int cancel_at = 0) {
    const size_t index = received.size();
    received.emplace_back(), received_logprobs.emplace_back(), cancels.emplace_back();
    const auto on_token = [this, index, cancel_at](const SampledToken& t) {
      received[index].push_back(t.token);
      received_logprobs[index].push_back(t.logprobs);
      if (std::ssize(received[index]) == cancel_at) cancels[index].request_stop();
    };
    requests.push_back(
        engine.prepare(std::move(prompt), params, on_token, cancels.back().get_token()).value());
    requests.back()->client = client;
    engine.add(requests.back());
    return *requests.back();
  }
  void expect_equals(const Harness& other) const {
    ASSERT_EQ(requests.size(), other.requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(requests[i]->tokens, other.requests[i]->tokens) << i;
      EXPECT_EQ(requests[i]->finish, other.requests[i]->finish) << i;
      EXPECT_EQ(received[i], other.received[i]) << i;
      EXPECT_TRUE(received_logprobs[i] == other.received_logprobs[i]) << i;
    }
  }
};

// Ends a text after nine tokens or so.
inline std::vector<int32_t> many_stops() {
  std::vector<int32_t> stops;
  for (int32_t t = 0; t < kVocab; t += 9) stops.push_back(t);
  return stops;
}

// Long and short prompts, seeds, stop tokens, cancelling callbacks, a full context, arrivals on the way,
// log-probabilities for some, and one that only the host can sample.
inline void mixed_load(Harness& run) {
  for (int i = 0; i < 40; ++i) {
    SamplingParams p{.temperature = i % 3 == 0 ? 0.0 : 1.0, .seed = static_cast<uint64_t>(i)};
    p.max_tokens = i % 4 == 1 ? 1 + i % 7 : 0;
    if (i % 4 != 1) p.stop_tokens = many_stops();
    if (i % 10 == 9) p.frequency_penalty = 0.5;
    if (i % 7 == 6) p.min_tokens = i % 5 * 6;  // sampled by the host until then
    if (i % 3 == 1) p.top_logprobs = i % 12;
    run.submit(1 + (i * 37) % 150, p, i % 5 == 4 ? 3 : 0);
    for (int s = 0; s < i % 4; ++s) ASSERT_EQ(run.engine.step().message(), "");
  }
  ASSERT_EQ(run.engine.run_to_end().message(), "");
}

}  // namespace moesaic
