#include "core/draft_batch.h"

#include <algorithm>

#include "base/error.h"
#include "core/choose_token.h"

namespace moesaic {
namespace {

// rows: so many are taken in at most, from the sequence's first one on.
template <typename Drafted>
Status check_pages(const Drafted& d, const Sequence& s, int rows, const KvLayout& layout) {
  const std::vector<int32_t>& pages = d.full_pages.empty() ? s.full_pages : d.full_pages;
  const int end = s.context - s.rows + rows + std::max(0, d.drafts - 1);
  const int needed = (end + layout.page_tokens - 1) / layout.page_tokens;
  if (std::ssize(pages) < needed)
    return invalid("draft: sequence {} has {} pages, its {} positions need {}", d.sequence, pages.size(), end,
                   needed);
  for (int i = 0; i < needed; ++i) {
    if (pages[i] < 0 || pages[i] >= layout.full_pages)
      return invalid("draft: sequence {}: page {} is {}, the pool has {}", d.sequence, i, pages[i],
                     layout.full_pages);
  }
  return {};
}

template <typename Drafted>
Status check_sequence(const Drafted& d, const Batch& batch, const Eagle3Config& head, int next_tokens,
                      int sampling) {
  const Sequence& s = batch.sequences[static_cast<size_t>(d.sequence)];
  if (std::ssize(d.next_tokens) != next_tokens)
    return invalid("draft: sequence {} gives {} next tokens for {} rows", d.sequence, d.next_tokens.size(),
                   s.rows);
  if (!d.sampling.empty() && std::ssize(d.sampling) != sampling)
    return invalid("draft: sequence {} has sampling for {} of its {} drafts", d.sequence, d.sampling.size(),
                   sampling);
  for (const int32_t token : d.next_tokens) {
    if (token < 0 || token >= head.vocab)
      return invalid("draft: sequence {} has token {}, the vocabulary has {}", d.sequence, token, head.vocab);
  }
  if (d.begin < 0 || d.begin > s.context - s.rows)
    return invalid("draft: sequence {} begins at {}, its first row stands at {}", d.sequence, d.begin,
                   s.context - s.rows);
  if (d.drafts < 0 || d.drafts > kMostDraft)
    return invalid("draft: sequence {} wants {} drafts, at most {} are possible", d.sequence, d.drafts,
                   kMostDraft);
  return {};
}

template <typename Drafted>
Status check_order(std::span<const Drafted> sequences, const Batch& batch) {
  int last = -1;
  for (const Drafted& d : sequences) {
    if (d.sequence <= last || d.sequence >= std::ssize(batch.sequences))
      return invalid("draft: sequence {} after {}, of {} in the step", d.sequence, last,
                     batch.sequences.size());
    last = d.sequence;
  }
  return {};
}

}  // namespace

Status validate(std::span<const DraftSequence> sequences, size_t tokens, const Batch& batch,
                const Eagle3Config& head, const KvLayout& layout) {
  RETURN_IF_ERROR(check_order(sequences, batch));
  size_t drafts = 0;
  for (const DraftSequence& d : sequences) {
    const Sequence& s = batch.sequences[static_cast<size_t>(d.sequence)];
    const auto rows = static_cast<int>(std::ssize(d.next_tokens));
    RETURN_IF_ERROR(check_sequence(d, batch, head, std::clamp(rows, 1, s.rows), d.drafts));
    RETURN_IF_ERROR(check_pages(d, s, rows, layout));
    drafts += static_cast<size_t>(d.drafts);
  }
  if (drafts == tokens) return {};
  return invalid("draft: places for {} tokens, {} drafts are wanted", tokens, drafts);
}

Status validate(std::span<const SequenceAhead> sequences, const Batch& batch, const Eagle3Config& head,
                const KvLayout& layout) {
  if (batch.sampling.empty() && !batch.logit_rows.empty())
    return invalid("draft: it is begun behind a step that is not sampled");
  RETURN_IF_ERROR(check_order(sequences, batch));
  for (const SequenceAhead& d : sequences) {
    const Sequence& s = batch.sequences[static_cast<size_t>(d.sequence)];
    const int logit_rows = wanted_rows(batch, d.sequence).count, moves = most_moved(batch, d.sequence);
    if (logit_rows == 0 && d.drafts > 0)
      return invalid("draft: sequence {} wants drafts behind a row without logits", d.sequence);
    RETURN_IF_ERROR(
        check_sequence(d, batch, head, s.rows - logit_rows, d.drafts + moves + std::max(0, logit_rows - 1)));
    RETURN_IF_ERROR(check_pages(d, s, s.rows + moves, layout));
  }
  return {};
}

DraftRounds::DraftRounds(std::span<const DraftSequence> sequences, const Batch& batch)
    : sequences_(sequences) {
  size_t drafts = 0;
  for (const DraftSequence& d : sequences) {
    const Sequence& s = batch.sequences[static_cast<size_t>(d.sequence)];
    pages_.emplace_back(d.full_pages.empty() ? s.full_pages : d.full_pages);
    first_draft_.push_back(drafts);
    drafts += static_cast<size_t>(d.drafts);
    for (size_t i = 0; i < d.next_tokens.size(); ++i) {
      const int row = s.first_row + static_cast<int>(i);
      rows_.push_back({.of = static_cast<int>(pages_.size()) - 1,
                       .token = d.next_tokens[i],
                       .position = batch.positions[static_cast<size_t>(row)]});
      source_rows_.push_back(row);
    }
  }
  find_logit_rows();
}

// They are the last rows of the sequences that want another draft.
void DraftRounds::find_logit_rows() {
  logit_rows_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const bool last = i + 1 == rows_.size() || rows_[i + 1].of != rows_[i].of;
    if (last && sequences_[static_cast<size_t>(rows_[i].of)].drafts > round_)
      logit_rows_.push_back(static_cast<int>(i));
  }
}

void DraftRounds::choose(std::span<const float> logits, std::span<const int32_t> ids,
                         std::span<int32_t> tokens) {
  std::vector<DraftRow> next;
  kept_.clear();
  for (size_t i = 0; i < logit_rows_.size(); ++i) {
    const DraftRow& row = rows_[static_cast<size_t>(logit_rows_[i])];
    const DraftSequence& d = sequences_[static_cast<size_t>(row.of)];
    const size_t first = first_draft_[static_cast<size_t>(row.of)];
    const DeviceSampling greedy;
    const int32_t token = choose_token(logits.subspan(i * ids.size(), ids.size()), ids,
                                       d.sampling.empty() ? greedy : d.sampling[static_cast<size_t>(round_)]);
    if (token < 0) {
      std::fill_n(tokens.begin() + static_cast<int64_t>(first) + round_, d.drafts - round_, -1);
    } else {
      tokens[first + static_cast<size_t>(round_)] = token;
      if (round_ + 1 < d.drafts) {
        next.push_back({.of = row.of, .token = token, .position = row.position + 1});
        kept_.push_back(static_cast<int>(i));
      }
    }
  }
  rows_ = std::move(next);
  ++round_;
  find_logit_rows();
}

}  // namespace moesaic
