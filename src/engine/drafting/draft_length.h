// How many tokens of each draft are worth their rows.
#pragma once

#include <span>
#include <vector>

#include "drafting/step_costs.h"

namespace moesaic {

struct DraftChoice {
  const StepCosts* plain;    // of steps without drafts
  const StepCosts* drafted;  // of steps with drafts: a device's pipeline stops for them
  int rows = 0;              // of the step without drafts, each of which brings a token further
  int free_rows = 0;         // most tokens of all drafts together
  double token_seconds = 0;  // that the drafter takes for a token
  // [requests] of each request's draft, the chance that its first 1, 2, .. tokens are all accepted: falling.
  std::span<const std::vector<double>> reach;
};

// [requests] tokens of each draft, for the most expected tokens a second; all 0 where drafts do not bring at
// least 2% more than none, and where no step of so few rows was measured lately: if all steps had drafts,
// nobody would know what one without takes.
std::vector<int> choose_draft_lengths(const DraftChoice& choice);

}  // namespace moesaic
