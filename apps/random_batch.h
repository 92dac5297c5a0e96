// Sequences of random tokens on a backend, for bench and profile.
#pragma once

#include <random>
#include <vector>

#include "backend/backend.h"
#include "engine/kv_pages.h"

namespace moesaic::app {

class RandomBatch {
 public:
  struct Options {
    int sequences = 1;
    int max_tokens = 0;  // the longest sequence
    int max_rows = 512;  // rows of a step: at least one for each sequence, at most the backend's
  };

  // Allocates the KV cache of the backend, which holds the model of `config`. load() has looked at the
  // memory.
  static Result<RandomBatch> create(Backend& backend, const ModelConfig& config, const Options& options);

  // Every sequence begins again, with `depth` random tokens of its own, the same ones every time. Those that
  // the cache still has from the last time are not computed again: what is timed behind them is not timed at
  // the clocks that a long prefill leaves behind.
  Status restart(int depth);
  // Appends `tokens` random tokens to each sequence, in as few steps as max_rows allows. logits: those of
  // each sequence's last token are computed, as sampling would need them; a backend that samples
  // takes the likeliest, and the last step may still run. What is sampled is not what is appended: greedy
  // answers of random weights repeat themselves, and few experts would be read.
  Status append(int tokens, bool logits);
  // Waits for the last step.
  Status wait();

 private:
  RandomBatch(Backend& backend, const ModelConfig& config, const Options& options, const KvLayout& layout);
  int sequences() const { return options_.sequences; }
  int32_t random_token() { return static_cast<int32_t>(rng_() % config_.vocab); }
  void add(Batch& batch, int sequence, int rows);
  // Brings every sequence to so many tokens.
  Status advance(int target, bool logits);
  Status take(size_t tokens);

  Backend* backend_;
  ModelConfig config_;
  Options options_;
  KvPages pages_;
  std::vector<PageTable> tables_;          // [sequences]
  std::vector<int> lengths_;               // [sequences] tokens in the cache
  int depth_ = 0;                          // the first so many tokens are the sequence's own
  std::vector<std::vector<int32_t>> own_;  // [sequences][>= depth_]
  std::vector<float> logits_;
  size_t in_flight_ = 0;  // tokens that the step in flight samples
  std::vector<SampledToken> drawn_;
  std::mt19937 rng_{1};
};

}  // namespace moesaic::app
