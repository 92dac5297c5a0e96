// Greedy generation of one sequence with a draft head: for tests, and for measuring how much a head helps.
// The engine schedules for itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/draft_head.h"

namespace moesaic {

struct DraftedOptions {
  int max_tokens = 128;  // to generate
  int drafts = 3;        // verified in a step, at most kMostDraft; 0: generate without the head
  int chunk = 512;       // rows of a step of the prompt
  std::vector<int32_t> stop_tokens = {};
};

struct DraftedAnswer {
  std::vector<int32_t> tokens;  // the stop token included
  int steps = 0;                // after the prompt
  int generated = 0;            // tokens of those steps
  // The acceptance length: tokens of a step, 1 to drafts + 1.
  double length() const { return steps == 0 ? 0 : static_cast<double>(generated) / steps; }
};

// The backend holds the model of `config` and, if options.drafts > 0, a loaded draft head; the KV cache is
// allocated here. The tokens are the ones without a head, for a backend whose logits do not depend on the
// rows of a step.
Result<DraftedAnswer> answer_with_drafts(Backend& backend, const ModelConfig& config,
                                         std::span<const int32_t> prompt, const DraftedOptions& options);

// Finds the convention of a loaded head's taps by the acceptance length with either.
struct MeasuredTaps {
  TapConvention convention = TapConvention::kBoundary;
  std::vector<int> boundaries;  // the head's taps from now on
  double length = 0;            // with them
  double other_length = 0;      // by the other convention; 0: the target has no such boundaries
};
// Answers the prompt by each convention that the target has boundaries for, and leaves the better one set; of
// equals the one that `head` names. The KV cache is allocated here.
Result<MeasuredTaps> measure_taps(Backend& backend, const ModelConfig& config, const Eagle3Config& head,
                                  std::span<const int32_t> prompt, const DraftedOptions& options);

}  // namespace moesaic
