// experts MODEL [TOKENS] < prompts (prompts.py): how many distinct experts of a layer neighbouring tokens
// use: in answers to the prompts, greedily generated, in random tokens, and by chance. A step that verifies
// drafts reads as many experts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "api/tokenizer_source.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/sequence_runner.h"

namespace {

using namespace moesaic;

constexpr int kSpans[] = {1, 2, 4, 8, 16};  // neighbouring tokens

using Experts = std::vector<int>;

Experts chosen(std::span<const float> logits, int count) {
  Experts order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](int a, int b) { return logits[a] > logits[b]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

class Study {
 public:
  // layers: [layers][tokens] of one text.
  void add(const std::vector<std::vector<Experts>>& layers) {
    for (const auto& tokens : layers) {
      for (size_t i = 0; i < std::size(kSpans); ++i) count(tokens, i);
    }
  }
  void print(const char* text) const {
    std::printf("| %s |", text);
    for (size_t i = 0; i < std::size(kSpans); ++i) std::printf(" %.2f |", distinct_[i] / spans_[i]);
    std::printf("\n");
  }

 private:
  void count(const std::vector<Experts>& tokens, size_t i) {
    const auto span = static_cast<size_t>(kSpans[i]);
    for (size_t at = 0; at + span <= tokens.size(); at += span) {
      std::set<int> seen;
      for (size_t t = at; t < at + span; ++t) seen.insert(tokens[t].begin(), tokens[t].end());
      distinct_[i] += static_cast<double>(seen.size()), ++spans_[i];
    }
  }
  double distinct_[std::size(kSpans)] = {}, spans_[std::size(kSpans)] = {};
};

Status run(const char* path, int tokens) {
  ASSIGN_OR_RETURN(const Checkpoint model, open_checkpoint(path));
  ASSIGN_OR_RETURN(const moesaic::Tokenizer tokenizer, tokenizer_of(model));
  const ModelConfig& c = model.config;
  std::vector<std::vector<Experts>> seen(static_cast<size_t>(c.layers));
  BackendOptions options{.threads = 1};
  options.router_trace = [&](int layer, int, std::span<const float> logits) {
    seen[static_cast<size_t>(layer)].push_back(chosen(logits, c.experts_per_token));
  };
  ASSIGN_OR_RETURN(const auto backend, create_backend("cpu", options));
  RETURN_IF_ERROR(backend->load(c, model.weights, nullptr));
  ASSIGN_OR_RETURN(SequenceRunner runner, SequenceRunner::create(*backend, c, {.max_tokens = 4096}));
  Study answers, noise;
  std::mt19937 rng(1);
  const std::vector<int32_t> stops = tokenizer.stop_tokens();
  std::vector<float> logits;
  for (std::string text; std::getline(std::cin, text, '\0');) {
    for (const bool random : {false, true}) {
      runner.reset();
      const std::vector<int32_t> prompt = tokenizer.encode(text, true);
      RETURN_IF_ERROR(runner.append(prompt, SequenceRunner::Wanted::kLast, logits));
      for (auto& layer : seen) layer.clear();
      for (int i = 0; i < tokens; ++i) {
        const int32_t token =
            random ? static_cast<int32_t>(rng() % static_cast<uint32_t>(c.vocab)) : argmax(logits);
        if (!random && std::ranges::find(stops, token) != stops.end()) break;
        RETURN_IF_ERROR(runner.append(std::span(&token, 1), SequenceRunner::Wanted::kLast, logits));
      }
      (random ? noise : answers).add(seen);
    }
  }
  std::printf("distinct experts of %d, %d for each token\n| tokens |", c.experts, c.experts_per_token);
  for (const int span : kSpans) std::printf(" %d |", span);
  std::printf("\n");
  answers.print("answers"), noise.print("random tokens");
  std::printf("| by chance |");
  for (const int span : kSpans)
    std::printf(" %.2f |",
                c.experts * (1 - std::pow(1 - static_cast<double>(c.experts_per_token) / c.experts, span)));
  std::printf("\n");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = argc < 2 ? Status(StatusCode::kUsage, "usage: experts MODEL [TOKENS] < prompts")
                                 : run(argv[1], argc > 2 ? std::atoi(argv[2]) : 128);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
