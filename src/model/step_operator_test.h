// For tests: one model as a step operator (backend/step_operator.h), on a cache and page tables as a serving
// engine has them, and in the cuda backend, step by step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "backend/backend.h"
#include "backend/step_operator.h"
#include "base/relative_error_test.h"
#include "model/forward.h"
#include "model/overflowing_values_test.h"
#include "model/random_model.h"

namespace moesaic {

// Memory: allocate(bytes) gives memory that host and device see, copy_to_device(data, bytes) a copy in the
// device's own; both stay. wait() returns when the device is idle; cuda_backend(options) makes the backend.
template <typename Memory>
class StepOperatorAndBackend {
 public:
  static constexpr int kPages = 120, kTablePages = 12, kSequences = 8;

  // max_rows: of the operator's parts; pitch: K's and V's of a page, and what lies between pages; on_device:
  // the operator's matrices stand in the device's memory; overflows: token 1 has values that are infinite.
  explicit StepOperatorAndBackend(const ModelConfig& config, int max_rows, int pitch = 2,
                                  bool on_device = false, bool overflows = false)
      : config_(config), weights_(make_random_model(config, {})), overflowing_(config), pitch_(pitch) {
    if (overflows) overflowing_.put(weights_);
    auto backend = Memory::cuda_backend({.max_rows = kMostRows, .tune = false});
    EXPECT_EQ(backend.status().message(), "");
    backend_ = std::move(backend).value();
    EXPECT_EQ(backend_->load(config_, weights_, {}).message(), "");
    EXPECT_EQ(
        backend_->alloc_kv({.full_pages = kPages, .window_pages = kPages, .logit_rows = kMostRows}).message(),
        "");
    ModelWeights weights = on_device ? weights_on_device() : weights_;
    int released = 0;
    weights.release = [&](int) { ++released; };
    auto made =
        prepare_step({.max_rows = max_rows, .max_sequences = kSequences, .max_context = 32 * kTablePages},
                     config_, weights);
    EXPECT_EQ(released, config_.layers + 1);
    EXPECT_EQ(made.status().message(), "");
    operator_ = std::move(made).value();
    const size_t stride = static_cast<size_t>(pitch_) * operator_->page_bytes();
    for (int layer = 0; layer < config_.layers; ++layer) {
      void* const cache = Memory::allocate(kPages * stride);
      std::fill_n(static_cast<std::byte*>(cache), kPages * stride, std::byte{0x7F});
      EXPECT_EQ(operator_->set_cache(layer, cache, kPages, static_cast<int64_t>(stride)).message(), "");
    }
    std::iota(free_.begin(), free_.end(), 1);  // the first page is nobody's
    std::shuffle(free_.begin(), free_.end(), rng_);
    for (auto& table : tables_) {
      table = array<int32_t>(kSequences * kTablePages);
      std::fill_n(table, kSequences * kTablePages, -7);  // read beyond a sequence's end
    }
    starts_ = array<int32_t>(kSequences + 1), tokens_ = array<int32_t>(kMostRows);
    positions_ = array<int64_t>(kMostRows);
    for (auto& slots : slots_) slots = array<int64_t>(kMostRows);
    hidden_ = array<uint16_t>(kMostRows * config_.hidden), logits_ = array<float>(kMostRows * config_.vocab);
  }

  // A step of so many rows of each sequence, 0 for some. padding: rows behind them. Returns the distance of
  // the logits, relative to their size.
  double step(const std::vector<int>& rows, int padding = 0) {
    Batch batch;
    int longest = 0, row = 0;
    starts_[0] = 0;
    for (size_t s = 0; s < rows.size(); ++s) {
      const int end = contexts_[s] + rows[s];
      std::vector<int32_t> own[2];
      for (int kind = 0; kind < 2; ++kind) {
        for (int i = 0; i * 32 < end; ++i) {
          int32_t& page = tables_[kind][s * kTablePages + static_cast<size_t>(i)];
          if (page < 0) page = free_.back(), free_.pop_back();
          own[kind].push_back(page);
        }
      }
      for (int i = contexts_[s]; i < end; ++i, ++row) {
        tokens_[row] = static_cast<int32_t>(rng_() % static_cast<unsigned>(config_.vocab)),
        positions_[row] = i;
        for (int kind = 0; kind < 2; ++kind)
          slots_[kind][row] = own[kind][static_cast<size_t>(i / 32)] * 32 + i % 32;
        batch.tokens.push_back(tokens_[row]), batch.positions.push_back(i), batch.logit_rows.push_back(row);
      }
      if (rows[s] > 0)
        batch.sequences.push_back({.first_row = starts_[s],
                                   .rows = rows[s],
                                   .context = end,
                                   .full_pages = own[0],
                                   .window_pages = own[1]});
      starts_[s + 1] = row, contexts_[s] = end, longest = std::max(longest, end);
    }
    std::vector<float> want(static_cast<size_t>(row) * static_cast<size_t>(config_.vocab));
    EXPECT_EQ(forward(*backend_, config_, batch, want).message(), "");
    for (int i = row; i < row + padding; ++i) {
      tokens_[i] = -5, positions_[i] = int64_t{1} << 40;
      for (auto& slots : slots_) slots[i] = -1;
    }
    EXPECT_EQ(operator_->run(call_of(rows, padding, longest)).message(), "");
    EXPECT_EQ(operator_->logits(hidden_, row + padding, logits_, nullptr).message(), "");
    Memory::wait();
    return relative_error({logits_, want.size()}, want);
  }
  // The operator alone, for as many rows of each sequence, whose tokens and places are the last step's.
  Status run(const std::vector<int>& rows) {
    for (size_t s = 0; s < rows.size(); ++s) starts_[s + 1] = starts_[s] + rows[s];
    Status status = operator_->run(call_of(rows, 0, 32 * kTablePages));
    Memory::wait();
    return status;
  }
  // The operator alone: the logits of a sequence of at most 32 tokens that begins on this page.
  std::vector<float> logits_on(int32_t page, const std::vector<int32_t>& tokens) {
    const auto rows = static_cast<int>(tokens.size());
    starts_[0] = 0;
    std::ranges::copy(tokens, tokens_);
    std::iota(positions_, positions_ + rows, 0);
    for (int kind = 0; kind < 2; ++kind) {
      tables_[kind][0] = page;
      std::iota(slots_[kind], slots_[kind] + rows, 32 * page);
    }
    EXPECT_EQ(run({rows}).message(), "");
    EXPECT_EQ(operator_->logits(hidden_, rows, logits_, nullptr).message(), "");
    Memory::wait();
    return {logits_, logits_ + rows * config_.vocab};
  }
  // The operator alone: the logits of one row of the first sequence, written to its place 32, in a step whose
  // longest context is said to be that.
  std::vector<float> logits_at(int64_t position, int longest) {
    starts_[1] = 1, tokens_[0] = 2, positions_[0] = position;
    for (int kind = 0; kind < 2; ++kind) slots_[kind][0] = 32 * tables_[kind][1];
    EXPECT_EQ(operator_->run(call_of({1}, 0, longest)).message(), "");
    EXPECT_EQ(operator_->logits(hidden_, 1, logits_, nullptr).message(), "");
    Memory::wait();
    return {logits_, logits_ + config_.vocab};
  }
  StepOperator& op() { return *operator_; }

 private:
  StepOperatorCall call_of(const std::vector<int>& rows, int padding, int longest) const {
    return {.rows = starts_[rows.size()] + padding,
            .sequences = static_cast<int>(rows.size()),
            .host_starts = starts_,
            .starts = starts_,
            .tokens = tokens_,
            .positions = positions_,
            .full = {tables_[0], kTablePages, slots_[0]},
            .sliding = {tables_[1], kTablePages, slots_[1]},
            .longest = longest,
            .out = hidden_};
  }
  static constexpr int kMostRows = 512;
  ModelWeights weights_on_device() const {
    ModelWeights moved = weights_;
    const auto move = [](const std::byte*& data, int64_t bytes) {
      if (data != nullptr) data = Memory::copy_to_device(data, static_cast<size_t>(bytes));
    };
    const auto matrix = [&](MatrixView& m) { move(m.data, m.rows * m.row_stride); };
    const auto experts = [&](ExpertsView& e) {  // up's rows stand between gate's: it begins a row later
      const int64_t rows = e.first.rows - 1, last = e.count - 1;
      move(e.first.data, last * e.data_stride + rows * e.first.row_stride + e.first.cols / 2);
      move(e.first.scales, last * e.scale_stride + rows * e.first.scale_stride + e.first.cols / 32);
    };
    matrix(moved.head);
    for (LayerWeights& w : moved.layers) {
      for (MatrixView* m : {&w.q, &w.k, &w.v, &w.o}) matrix(*m);
      for (ExpertsView* e : {&w.gate, &w.up, &w.down}) experts(*e);
    }
    return moved;
  }
  template <typename T>
  static T* array(int count) {
    return static_cast<T*>(Memory::allocate(static_cast<size_t>(count) * sizeof(T)));
  }

  ModelConfig config_;
  ModelWeights weights_;
  OverflowingValues overflowing_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<StepOperator> operator_;
  std::mt19937 rng_{5};
  int pitch_;
  std::vector<int32_t> free_ = std::vector<int32_t>(kPages - 1);
  std::vector<int> contexts_ = std::vector<int>(kSequences);
  int32_t *tables_[2], *starts_, *tokens_;
  int64_t *positions_, *slots_[2];
  uint16_t* hidden_;
  float* logits_;
};

// A row with infinite values stands in one page, and later one in another. The next owners of these pages
// get what they get on clean ones.
template <typename Both>
void expect_that_a_fault_harms_nobody(Both& both) {
  const auto finite = [](const std::vector<float>& logits) {
    return std::ranges::all_of(logits, [](float x) { return std::isfinite(x); });
  };
  const std::vector<int32_t> fresh = {2, 3};
  const std::vector<float> want = both.logits_on(7, fresh);
  EXPECT_TRUE(finite(want));
  EXPECT_FALSE(finite(both.logits_on(5, {2, 3, 4, 5, 6, 7, 8, 9, 10, OverflowingValues::kToken})));
  EXPECT_EQ(both.logits_on(5, fresh), want);
  EXPECT_EQ(both.logits_on(6, fresh), want);
  EXPECT_FALSE(finite(both.logits_on(6, {2, OverflowingValues::kToken})));
  EXPECT_EQ(both.logits_on(5, fresh), want);
  EXPECT_EQ(both.logits_on(6, fresh), want);
}

// The kernels have room for the longest context alone, whatever a position says.
template <typename Both>
void expect_that_no_position_is_beyond_the_longest(Both& both) {
  both.step({370});
  const std::vector<float> want = both.logits_at(32, 33);
  EXPECT_EQ(both.logits_at(360, 33), want);
  EXPECT_EQ(both.logits_at(int64_t{1} << 40, 33), want);
}

}  // namespace moesaic
