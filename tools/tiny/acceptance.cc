// acceptance MODEL HEAD [DRAFTS] [DEVICE] [THREADS] < prompts: how many tokens a step gives with an EAGLE3
// draft head, greedily, and whether the answers are the ones without. A line of input is a JSON list of token
// ids (train_head.py --prompts writes such lines).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/eagle3.h"
#include "model/drafted_answer.h"

namespace {

using namespace moesaic;

struct Sums {
  int prompts = 0, same = 0, steps = 0, generated = 0;
  double with = 0, without = 0;  // seconds
};

Result<DraftedAnswer> timed(Backend& backend, const ModelConfig& config, const std::vector<int32_t>& prompt,
                            const DraftedOptions& options, double& seconds) {
  const auto start = std::chrono::steady_clock::now();
  auto answer = answer_with_drafts(backend, config, prompt, options);
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return answer;
}

// The end tokens of models/tiny: those of generation_config.json.
const std::vector<int32_t> kStops = {4088, 4089, 4095};

Status measure(Backend& backend, const ModelConfig& config, int drafts, Sums& sums) {
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_array()) return invalid("a line is not a JSON list of token ids");
    const auto prompt = json.get<std::vector<int32_t>>();
    DraftedOptions options = {.max_tokens = 256, .drafts = drafts, .stop_tokens = kStops};
    ASSIGN_OR_RETURN(const DraftedAnswer with, timed(backend, config, prompt, options, sums.with));
    options.drafts = 0;
    ASSIGN_OR_RETURN(const DraftedAnswer without, timed(backend, config, prompt, options, sums.without));
    ++sums.prompts, sums.same += with.tokens == without.tokens;
    sums.steps += with.steps, sums.generated += with.generated;
  }
  return {};
}

Status run(int argc, char** argv) {
  const int drafts = argc > 3 ? std::atoi(argv[3]) : 3;
  ASSIGN_OR_RETURN(const Checkpoint model, open_checkpoint(argv[1]));
  ASSIGN_OR_RETURN(const Eagle3Head head, open_eagle3(argv[2], model.config));
  ASSIGN_OR_RETURN(const auto backend, create_backend(argc > 4 ? argv[4] : "cpu",
                                                      {.threads = argc > 5 ? std::atoi(argv[5]) : 0}));
  RETURN_IF_ERROR(backend->load(model.config, model.weights, nullptr));
  if (backend->draft_head() == nullptr) return invalid("{} has no draft heads", backend->caps().name);
  Sums s;
  // answer_with_drafts() allocates a cache for each prompt; the head is loaded before the first.
  RETURN_IF_ERROR(backend->draft_head()->load(head.config, head.weights));
  RETURN_IF_ERROR(measure(*backend, model.config, drafts, s));
  std::printf(
      "%d prompts on %s: %.3f tokens a step of at most %d, %d answers the same as without; %.2f s, without "
      "%.2f s\n",
      s.prompts, backend->caps().name.c_str(), static_cast<double>(s.generated) / s.steps, drafts + 1, s.same,
      s.with, s.without);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL HEAD [DRAFTS] [DEVICE] [THREADS] < prompts\n", argv[0]);
    return 2;
  }
  try {
    const Status status = run(argc, argv);
    if (status.ok()) return 0;
    std::fprintf(stderr, "%s\n", status.message().c_str());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  return 1;
}
