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
    int max_tokens = 0;  // of each sequence
    int max_rows = 512;  // of a step: at least one for each sequence, at most the backend's
  };

  // Allocates the KV cache of the backend, which holds the model of `config`, after a look at the free
  // memory.
  static Result<RandomBatch> create(Backend& backend, const ModelConfig& config, const Options& options);

  // Empties every sequence; the cache stays allocated.
  void reset();
  // Appends `tokens` random tokens to each sequence, in as few steps as max_rows allows. logits: those of
  // each sequence's last token are computed, as sampling would need them; a backend that draws tokens
  // draws the likeliest, and the last step may still run. What is drawn is not what is appended: greedy
  // answers of random weights repeat themselves, and few experts would be read.
  Status append(int tokens, bool logits);
  // Waits for the last step.
  Status wait();

 private:
  RandomBatch(Backend& backend, const ModelConfig& config, const Options& options, const KvLayout& layout);
  Status step(int first, int count, int rows, bool logits);
  Status take(size_t tokens);

  Backend* backend_;
  ModelConfig config_;
  Options options_;
  KvPages pages_;
  std::vector<PageTable> tables_;  // [sequences]
  std::vector<int> lengths_;       // [sequences] tokens in the cache
  std::vector<float> logits_;
  size_t under_way_ = 0;  // tokens that the step under way draws
  std::vector<int32_t> drawn_;
  std::mt19937 rng_{1};
};

}  // namespace moesaic::app
