// The goldens of tests/golden/model (made by tools/golden/make_model_goldens.py), and the distances in which
// logits are compared.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/weights.h"

namespace moesaic {

struct Golden {
  struct Greedy {
    int after;                    // tokens of the prompt
    std::vector<int32_t> tokens;  // the tokens that follow
  };
  std::string name;
  ModelConfig config;
  uint64_t seed;                // make_random_model's
  std::vector<int32_t> tokens;  // every prompt is a prefix
  int all_positions;            // length of the prompt whose every position is recorded
  std::vector<int> lengths;     // lengths of the prompts whose last position is recorded
  std::vector<Greedy> greedy;
  std::vector<float> logits;  // [all_positions + lengths.size(), vocab]

  std::span<const int32_t> prompt(int length) const {
    return std::span(tokens).first(static_cast<size_t>(length));
  }
  // rows [first, first + count) of logits
  std::span<const float> rows(size_t first, size_t count = 1) const;
};

std::string golden_folder();
// Fails the running test when the file is missing or damaged.
Golden load_golden(const std::string& name);

struct Distance {
  double max;  // max |a - b| / max |b|
  double rms;  // rms(a - b) / rms(b)
};
Distance distance(std::span<const float> a, std::span<const float> b);

// The devices of this machine: "reference", "cpu", and "cuda" where there is one.
std::vector<const char*> devices();

// The backend with the model loaded; fails the running test on an error.
std::unique_ptr<Backend> load_backend(const std::string& device, const ModelConfig& config,
                                      const ModelWeights& weights, const std::string& isa = "auto",
                                      const RouterTrace& trace = nullptr);

// Logits of the last token (or of all) of a fresh sequence that is fed in chunks.
std::vector<float> run_sequence(Backend& backend, const ModelConfig& config, std::span<const int32_t> tokens,
                                int chunk, bool all = false);

}  // namespace moesaic
