// For tests: steps that follow each other on a device without the host in between, in plain code. It shows
// what a batch with continuations, and a draft begun behind a step, come down to once all is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/accepted_prefix.h"
#include "core/batch.h"
#include "core/draft_batch.h"

namespace moesaic {

// A step that has run. The next one goes on from it.
struct RunStep {
  Batch batch;                                    // with every token and position as it was computed
  std::vector<int> moved;                         // [sequences] the device moved it on by so many rows
  std::vector<int32_t> sampled;                   // [logit_rows]
  std::vector<int> accepted;                      // [sequences] drafted rows that hold
  std::vector<std::vector<int32_t>> drafts = {};  // [sequences] made behind it; -1: no token could be chosen
};

// Returns the batch without continuations. before: the step that they go on from.
inline RunStep begin_run(const Batch& batch, const RunStep& before) {
  RunStep run{.batch = batch, .moved = std::vector<int>(batch.sequences.size())};
  Batch& b = run.batch;
  b.continuations.clear();
  for (size_t row = 0; row < b.token_sources.size(); ++row) {
    const int32_t source = b.token_sources[row];
    if (source >= 0) b.tokens[row] = std::max(0, before.sampled[static_cast<size_t>(source)]);
  }
  b.token_sources.clear();
  for (const Continuation& c : batch.continuations) {
    Sequence& s = b.sequences[static_cast<size_t>(c.sequence)];
    const auto source = static_cast<size_t>(c.source);
    const int moved = before.accepted[source];
    run.moved[static_cast<size_t>(c.sequence)] = moved;
    s.context += moved;
    const int first = wanted_rows(before.batch, c.source).first + moved,
              sampled = wanted_rows(b, c.sequence).first;
    for (int i = 0; i < s.rows; ++i) {
      const auto row = static_cast<size_t>(s.first_row + i);
      const int32_t token = i == 0 ? before.sampled[static_cast<size_t>(first)]
                                   : before.drafts[source][static_cast<size_t>(i) - 1];
      b.tokens[row] = std::max(0, token);
      b.positions[row] += moved;
      b.sampling[static_cast<size_t>(sampled + i)] = c.sampling[static_cast<size_t>(moved + i)];
    }
  }
  return run;
}

// Sets what was sampled, and with it how many drafted rows hold: a sequence's logit rows but the first are of
// drafted tokens.
inline void end_run(RunStep& step, std::vector<int32_t> sampled) {
  const Batch& b = step.batch;
  step.sampled = std::move(sampled);
  step.accepted.assign(b.sequences.size(), 0);
  for (size_t i = 0; i < b.sequences.size(); ++i) {
    const auto [first, count] = wanted_rows(b, static_cast<int>(i));
    std::vector<int32_t> draft;
    for (int place = first + 1; place < first + count; ++place)
      draft.push_back(b.tokens[static_cast<size_t>(b.logit_rows[static_cast<size_t>(place)])]);
    step.accepted[i] = accepted_prefix(draft, std::span(step.sampled).subspan(static_cast<size_t>(first)));
  }
  step.drafts.assign(b.sequences.size(), {});
}

// Returns what DraftHead::begin_draft() was given behind the step, as draft() takes it.
inline std::vector<DraftSequence> settle(std::span<const SequenceAhead> sequences, const RunStep& step) {
  std::vector<DraftSequence> settled;
  for (const SequenceAhead& ahead : sequences) {
    DraftSequence& d = settled.emplace_back(DraftSequence{.sequence = ahead.sequence,
                                                          .next_tokens = ahead.next_tokens,
                                                          .drafts = ahead.drafts,
                                                          .full_pages = ahead.full_pages,
                                                          .begin = ahead.begin});
    const auto of = static_cast<size_t>(d.sequence);
    const auto [first, count] = wanted_rows(step.batch, d.sequence);
    const int accepted = step.accepted[of];
    for (int i = 0; i < count && i <= accepted; ++i)
      d.next_tokens.push_back(std::max(0, step.sampled[static_cast<size_t>(first + i)]));
    if (ahead.sampling.empty()) continue;
    const auto begin = ahead.sampling.begin() + step.moved[of] + accepted;
    d.sampling = {begin, begin + d.drafts};
  }
  return settled;
}

}  // namespace moesaic
