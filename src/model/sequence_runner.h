// One sequence on a backend of its own: page tables, chunks and positions are handled here. For tests,
// `verify`, `logits` and `perplexity`; the engine schedules for itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace moesaic {

class SequenceRunner {
 public:
  enum class Wanted { kNone, kLast, kAll };
  struct Options {
    int max_tokens = 0;  // prompt and generated together
    int chunk = 512;     // rows of a step, at most the backend's max_rows
    int page_tokens = kPageTokens;
  };

  // Allocates the backend's KV cache. The backend must hold the model of `config` and outlive the runner. The
  // window layers get only the pages that a window and a chunk span, used in turn.
  static Result<SequenceRunner> create(Backend& backend, const ModelConfig& config, const Options& options);

  // Appends the tokens in steps of at most `chunk` rows. logits: one row of `vocab` for the last token, or
  // one for each, or left empty.
  Status append(std::span<const int32_t> tokens, Wanted wanted, std::vector<float>& logits);
  // Forgets the sequence; the cache stays allocated.
  void reset() { length_ = 0; }
  int length() const { return length_; }
  // Takes back the last tokens: the sequence has `length` again, at most options.chunk fewer than it had.
  void truncate(int length) { length_ = length; }

 private:
  SequenceRunner(Backend& backend, const ModelConfig& config, const Options& options)
      : backend_(&backend), config_(config), options_(options) {}
  KvLayout layout() const;
  Batch next_batch(std::span<const int32_t> tokens) const;

  Backend* backend_;
  ModelConfig config_;
  Options options_;
  int length_ = 0;  // tokens in the cache
};

// The index of the largest value, the first of equals: greedy sampling.
int32_t argmax(std::span<const float> logits);

}  // namespace moesaic
