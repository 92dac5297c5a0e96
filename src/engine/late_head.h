// For tests: the draft head of LateBackend. It guesses right wherever every row was taken in once with the
// token that follows it, and wrong from the first place on where one was not.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "core/continuation.h"
#include "drafting/test_draft_head.h"

namespace moesaic {

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

class LateHead final : public TestDraftHead {
 public:
  // put_logits(first, logits): of LateBackend, for a row whose first choice that is.
  using PutLogits = std::function<void(int32_t first, std::span<float> logits)>;
  // The step that was launched last, where it samples; else null.
  using LastStep = std::function<const Batch*()>;
  // choices: below this are first choices.
  LateHead(int vocab, int choices, int window, PutLogits put_logits, LastStep last_step)
      : choices_(choices),
        window_(window),
        put_logits_(std::move(put_logits)),
        last_step_(std::move(last_step)),
        ids_(vocab) {
    config_.vocab = vocab;
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  Status draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) override {
    if (!std::exchange(has_step_, false)) return {StatusCode::kInternal, "no step before"};
    RETURN_IF_ERROR(validate(sequences, tokens.size(), batch_, config_, layout_));
    DraftRounds rounds(sequences, batch_);
    std::vector<uint64_t> at;  // each row's hash of the tokens up to it
    for (const int row : rounds.source_rows()) at.push_back(hidden_[row]);
    while (!rounds.rows().empty()) {
      at = append(rounds, at);
      rounds.choose(logits_of(rounds), ids_, tokens);
      std::vector<uint64_t> kept;
      for (const int i : rounds.kept()) kept.push_back(at[i]);
      at = kept;
    }
    return {};
  }

  bool drafts_ahead() const override { return last_step_ != nullptr; }
  Result<int64_t> begin_draft(std::span<const SequenceAhead> sequences) override {
    const Batch* step = last_step_();
    if (step == nullptr) return Status(StatusCode::kInternal, "no step that samples before");
    if (const Status valid = validate(sequences, *step, config_, layout_); !valid.ok()) return valid;
    begun_.push_back({.sequences = {sequences.begin(), sequences.end()}, .step = step});
    return ++last_begun_;
  }
  Result<double> finish_draft(int64_t begun, std::span<int32_t> tokens) override {
    const std::vector<int32_t> made = std::exchange(finished_[begun], {});
    if (made.size() != tokens.size()) return Status(StatusCode::kInternal, "no such draft was begun");
    std::ranges::copy(made, tokens.begin());
    finished_.erase(begun);
    return 1e-6;
  }

  // From LateBackend. run(): the step has run, and with it what was begun behind it.
  void run(const Batch* queued, RunStep& step) {
    if (begun_.empty() || begun_.front().step != queued) return;
    const std::vector<DraftSequence> sequences = settle(begun_.front().sequences, step);
    begun_.pop_front();
    std::vector<int32_t> tokens;
    for (const DraftSequence& d : sequences) tokens.resize(tokens.size() + static_cast<size_t>(d.drafts));
    const Status status = draft(sequences, tokens);
    EXPECT_TRUE(status.ok()) << status.message();
    auto at = tokens.begin();
    for (const DraftSequence& d : sequences) {
      step.drafts[static_cast<size_t>(d.sequence)] = {at, at + d.drafts};
      at += d.drafts;
    }
    finished_[last_begun_ - static_cast<int>(begun_.size())] = tokens;
  }
  void forget() { begun_.clear(), finished_.clear(); }
  void alloc_kv(const KvLayout& layout) {
    layout_ = layout;
    cache_.assign(static_cast<size_t>(layout.full_pages) * static_cast<size_t>(layout.page_tokens), {});
  }
  // hidden: [rows] hashes of the tokens up to each row.
  void keep(const Batch& batch, std::vector<uint64_t> hidden) {
    batch_ = batch, hidden_ = std::move(hidden), has_step_ = true;
  }

 private:
  struct Entry {
    uint64_t up_to = 0, behind = 0;  // the hashes of the tokens up to a position, and with the next one
  };
  Entry& entry(std::span<const int32_t> pages, int position) {
    return cache_[pages[position / layout_.page_tokens] * layout_.page_tokens +
                  position % layout_.page_tokens];
  }
  // The hashes behind the rows whose logits are wanted.
  std::vector<uint64_t> append(const DraftRounds& rounds, std::span<const uint64_t> at) {
    std::vector<uint64_t> behind;
    for (size_t i = 0; i < rounds.rows().size(); ++i) {
      const DraftRow& row = rounds.rows()[i];
      entry(rounds.pages(row), row.position) = {at[i], mix(at[i], row.token)};
    }
    for (const int row : rounds.logit_rows()) behind.push_back(mix(at[row], rounds.rows()[row].token));
    return behind;
  }
  std::vector<float> logits_of(const DraftRounds& rounds) {
    std::vector<float> logits(rounds.logit_rows().size() * ids_.size());
    for (size_t i = 0; i < rounds.logit_rows().size(); ++i) {
      const DraftRow& row = rounds.rows()[rounds.logit_rows()[i]];
      const auto pages = rounds.pages(row);
      const auto up_to = [&](int p) { return p == 0 ? entry(pages, 0).up_to : entry(pages, p - 1).behind; };
      const int last = row.position + 1;
      uint64_t hash = 7;
      for (int p = 0; p <= last; ++p) hash = mix(hash, up_to(p));
      for (int p = std::max(0, last - window_ + 1); p <= last; ++p) hash = mix(hash, up_to(p));
      put_logits_(static_cast<int32_t>((hash >> 33) % choices_),
                  std::span(logits).subspan(i * ids_.size(), ids_.size()));
    }
    return logits;
  }

  uint64_t choices_;
  int window_;
  PutLogits put_logits_;
  LastStep last_step_;
  Eagle3Config config_;
  std::vector<int32_t> ids_;
  KvLayout layout_;
  std::vector<Entry> cache_;
  Batch batch_;  // the last step's
  std::vector<uint64_t> hidden_;
  bool has_step_ = false;

  struct Begun {
    std::vector<SequenceAhead> sequences;
    const Batch* step = nullptr;
  };
  std::deque<Begun> begun_;
  std::map<int64_t, std::vector<int32_t>> finished_;  // tokens
  int64_t last_begun_ = 0;
};

}  // namespace moesaic
