// Steps that follow each other on a device without the host in between, in plain code: what a batch with
// continuations, and a draft begun behind a step, come down to once all is known. Tests compare devices with
// it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/batch.h"
#include "core/draft_batch.h"

namespace moesaic {

// A step that has run, as the next one goes on from it.
struct RunStep {
  Batch batch;                                    // with every token and position as it was computed
  std::vector<int> moved;                         // [sequences] rows that it was moved on by
  std::vector<int32_t> sampled;                   // [logit_rows]
  std::vector<int> accepted;                      // [sequences] drafted rows that hold
  std::vector<std::vector<int32_t>> drafts = {};  // [sequences] made behind it; -1: no token could be chosen
};

// The batch without continuations. before: the step that they go on from.
RunStep begin_run(const Batch& batch, const RunStep& before);
// Sets what was sampled, and with it how many drafted rows hold: a sequence's logit rows but the first are of
// drafted tokens.
void end_run(RunStep& step, std::vector<int32_t> sampled);
// What was given to DraftHead::begin_draft() behind the step, as draft() takes it.
std::vector<DraftSequence> settle(std::span<const SequenceAhead> sequences, const RunStep& step);

}  // namespace moesaic
