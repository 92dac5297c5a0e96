// A draft head computes this after a step: it takes in rows of the step and drafts tokens behind them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/batch.h"
#include "core/eagle3.h"

namespace moesaic {

// One sequence of the last step, whose tokens are known: which of its rows a head takes in, and how many
// tokens it drafts behind them.
struct DraftSequence {
  int sequence = 0;  // its index in that step's batch
  // The tokens that follow its first rows: next_tokens[i] stands one position after row first_row + i, 1 to
  // rows of them. Rows beyond were not accepted. In a prompt's chunk they are the prompt's own tokens.
  std::vector<int32_t> next_tokens = {};
  int drafts = 0;  // tokens wanted after the last of the tokens that follow, at most kMostDraft
  // The way in which each draft is chosen, [drafts], with the uniform number that the target's sampler will
  // use for the same token; empty: the likeliest.
  std::vector<DeviceSampling> sampling = {};
  // A page table that reaches the position of the last row taken in + drafts - 1. Empty: the batch's own.
  std::vector<int32_t> full_pages = {};
  // The first position that the head has K and V of, at most that of the first row. The head does not attend
  // to what stands before it (on cuda, before its page). It may be larger than 0 where rows were not taken
  // in.
  int begin = 0;
};

// One sequence of a step that was launched and that samples: the tokens behind its logit rows are not known
// yet. A head takes in all of its rows, as far as drafted ones hold, and drafts behind the last of them.
struct SequenceAhead {
  int sequence = 0;                       // its index in that step's batch
  std::vector<int32_t> next_tokens = {};  // the tokens that follow its rows without logits
  int drafts = 0;                         // tokens wanted behind what the step samples, at most kMostDraft
  // The way in which each draft is chosen; empty: the likeliest. If n drafted rows hold, of this step and of
  // the one that it goes on from, draft i is chosen by sampling[n + i]: as many more as there are such rows.
  std::vector<DeviceSampling> sampling = {};
  std::vector<int32_t> full_pages = {};  // as above, if all drafted rows hold
  int begin = 0;                         // as above
};

// Returns one line that names the first value that a backend could not rely on. batch: of the last step;
// tokens: places for drafts.
Status validate(std::span<const DraftSequence> sequences, size_t tokens, const Batch& batch,
                const Eagle3Config& head, const KvLayout& layout);
Status validate(std::span<const SequenceAhead> sequences, const Batch& batch, const Eagle3Config& head,
                const KvLayout& layout);

// A row of the head: at `position` of a sequence, with the token that stands one further on.
struct DraftRow {
  int of = 0;  // index into the sequences given to draft()
  int32_t token = 0;
  int position = 0;
};

// The rounds of one draft() on validated input. The first round has a row for each token taken in, whose
// hidden states are those of source_rows(); each later one a row for each sequence that wants more drafts.
class DraftRounds {
 public:
  DraftRounds(std::span<const DraftSequence> sequences, const Batch& batch);

  std::span<const DraftRow> rows() const { return rows_; }  // this round's; none: all is done
  std::span<const int> source_rows() const { return source_rows_; }
  std::span<const int32_t> pages(const DraftRow& row) const { return pages_[static_cast<size_t>(row.of)]; }
  // The first position that the row attends to, but for a window.
  int begin(const DraftRow& row) const { return sequences_[static_cast<size_t>(row.of)].begin; }
  // The indices of this round's rows whose logits give a token.
  std::span<const int> logit_rows() const { return logit_rows_; }
  // logits: [logit_rows, ids]. Puts the chosen tokens where draft() returns them, and makes the next round.
  // Its row i goes on from this one's logit_rows()[kept()[i]].
  void choose(std::span<const float> logits, std::span<const int32_t> ids, std::span<int32_t> tokens);
  // Calls seen(sequence, its row of `width` logits) for each.
  template <typename Seen>
  void show(std::span<const float> logits, size_t width, const Seen& seen) const {
    for (size_t i = 0; i < logit_rows_.size(); ++i)
      seen(static_cast<size_t>(rows_[static_cast<size_t>(logit_rows_[i])].of),
           logits.subspan(i * width, width));
  }
  std::span<const int> kept() const { return kept_; }

 private:
  void find_logit_rows();

  std::span<const DraftSequence> sequences_;
  std::vector<std::span<const int32_t>> pages_;  // [sequences]
  std::vector<size_t> first_draft_;              // [sequences] indices into the tokens of draft()
  std::vector<DraftRow> rows_;
  std::vector<int> source_rows_, logit_rows_, kept_;
  int round_ = 0;
};

}  // namespace moesaic
