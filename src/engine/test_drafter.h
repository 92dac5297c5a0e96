// For tests: a drafter that knows what will be said, and guesses wrong at times.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "drafting/drafter.h"

namespace moesaic {

class OracleDrafter final : public Drafter {
 public:
  // right: how often a token is the right one. Where it does not know the text it guesses wildly.
  OracleDrafter(double right, uint32_t seed) : right_(right), rng_(seed) {}

  std::string name() const override { return "oracle"; }
  bool is_costly() const override { return costly; }
  Status draft(std::span<DraftTask> tasks) override {
    for (DraftTask& task : tasks) {
      const std::vector<int32_t>& text = texts[task.request];
      const int length =
          random_lengths ? static_cast<int>(rng_() % static_cast<uint32_t>(task.most + 1)) : task.most;
      for (int i = 0; i < length; ++i) {
        const size_t at = task.tokens.size() + static_cast<size_t>(i);
        const bool right = std::uniform_real_distribution<>()(rng_) < right_ && at < text.size();
        task.draft.push_back(right ? text[at] : static_cast<int32_t>(rng_() % 250));
      }
    }
    return {};
  }
  // A request's rows are of known tokens and follow each other, but for what is computed again after a
  // preemption, from where the prefix cache ends by then.
  void computed(std::span<const ComputedRows> rows, bool) override {
    for (const ComputedRows& r : rows) {
      EXPECT_GT(r.rows, 0);
      EXPECT_LE(r.first_position + r.rows, std::ssize(r.tokens));
      EXPECT_FALSE(gone.contains(r.request));
      EXPECT_TRUE(!reached.contains(r.request) || r.first_position <= reached[r.request] ||
                  r.first_position % kPageTokens == 0);
      reached[r.request] = r.first_position + r.rows;
    }
  }
  void end(uint64_t request, std::span<const int32_t>, int) override {
    ++ended;
    gone.insert(request);
  }

  std::map<uint64_t, std::vector<int32_t>> texts;  // prompt and answer of each request
  std::map<uint64_t, int> reached;                 // positions computed, of each request
  std::set<uint64_t> gone;
  bool random_lengths = true, costly = false;
  int ended = 0;

 private:
  double right_;
  std::mt19937 rng_;
};

}  // namespace moesaic
