// Decides how many tokens of each draft are worth their rows.
#pragma once

#include <span>
#include <vector>

#include "drafting/step_costs.h"

namespace moesaic {

struct DraftChoice {
  const StepCosts* plain;    // the costs of steps without drafts
  const StepCosts* drafted;  // those of steps with drafts: a device's pipeline stops for them
  int rows = 0;              // rows of the step without drafts: each gives a token
  int free_rows = 0;         // most tokens of all drafts together
  double token_seconds = 0;  // the drafter's time for a token
  // [requests] the chances that the first 1, 2, .. tokens of the request's draft are all accepted: they fall.
  std::span<const std::vector<double>> reach;
};

// Returns the tokens of each draft, [requests], that bring the most expected tokens a second. All are 0 if
// drafts do not bring at least 2% more than none, and if no step of so few rows was measured lately: if all
// steps had drafts, nobody would know the time of one without.
std::vector<int> choose_draft_lengths(const DraftChoice& choice);

}  // namespace moesaic
