#include "core/batch.h"

#include <algorithm>
#include <span>

#include "base/error.h"

namespace moesaic {
namespace {

// A page table to check against its pool.
struct Table {
  const char* name;
  const std::vector<int32_t>& pages;
  int pool;    // pages there are
  int needed;  // first position that any row attends to
};

// context: of the sequence, at most.
Status check_table(size_t index, int context, const Table& table, int page_tokens) {
  const auto pages = static_cast<size_t>((context + page_tokens - 1) / page_tokens);
  if (table.pages.size() < pages)
    return invalid("batch: sequence {} has {} {} pages, its {} tokens need {}", index, table.pages.size(),
                   table.name, context, pages);
  for (size_t i = static_cast<size_t>(table.needed / page_tokens); i < pages; ++i) {
    if (table.pages[i] < 0 || table.pages[i] >= table.pool)
      return invalid("batch: sequence {}: {} page {} is {}, the pool has {}", index, table.name, i,
                     table.pages[i], table.pool);
  }
  return {};
}

Status check_positions(const Batch& b, size_t index, const Sequence& s, int max_context) {
  if (s.context < s.rows || s.context > max_context)
    return invalid("batch: sequence {} has a context of {} tokens for {} rows, the model takes {}", index,
                   s.context, s.rows, max_context);
  for (int i = 0; i < s.rows; ++i) {
    const int position = b.positions[static_cast<size_t>(s.first_row + i)];
    if (position != s.context - s.rows + i)
      return invalid("batch: row {} stands at position {}, expected {}", s.first_row + i, position,
                     s.context - s.rows + i);
  }
  return {};
}

bool ascend_below(std::span<const int32_t> rows, std::ptrdiff_t end) {
  return std::ranges::adjacent_find(rows, std::ranges::greater_equal()) == rows.end() &&
         (rows.empty() || (rows.front() >= 0 && rows.back() < end));
}

Status check_sampling(const std::vector<DeviceSampling>& sampling) {
  for (const DeviceSampling& d : sampling) {
    if (d.logprobs > kMostLogprobs)
      return invalid("batch: {} log-probabilities of a row, at most {} are possible", d.logprobs,
                     kMostLogprobs);
  }
  return {};
}

Status check_sequences(const Batch& b, const ModelConfig& c, const KvLayout& layout) {
  const bool any_sliding = std::find(c.sliding.begin(), c.sliding.end(), true) != c.sliding.end();
  const bool any_full = std::find(c.sliding.begin(), c.sliding.end(), false) != c.sliding.end();
  int row = 0;
  for (size_t i = 0; i < b.sequences.size(); ++i) {
    const Sequence& s = b.sequences[i];
    if (s.first_row != row || s.rows < 1 || s.rows > b.rows() - row)
      return invalid("batch: sequence {} has rows {} + {}, expected them to start at {} of {}", i,
                     s.first_row, s.rows, row, b.rows());
    row += s.rows;
    RETURN_IF_ERROR(check_positions(b, i, s, c.max_context));
    const int in_window = std::max(0, s.context - s.rows - c.window + 1);
    const int context = s.context + most_moved(b, static_cast<int>(i));
    if (context > c.max_context)
      return invalid("batch: sequence {} may reach {} tokens, the model takes {}", i, context, c.max_context);
    if (any_full)
      RETURN_IF_ERROR(
          check_table(i, context, {"full", s.full_pages, layout.full_pages, 0}, layout.page_tokens));
    if (any_sliding)
      RETURN_IF_ERROR(check_table(i, context, {"window", s.window_pages, layout.window_pages, in_window},
                                  layout.page_tokens));
  }
  if (row == b.rows()) return {};
  return invalid("batch: {} of its {} rows belong to no sequence", b.rows() - row, b.rows());
}

Status check_logit_rows(const Batch& b) {
  for (size_t i = 0; i < b.logit_rows.size(); ++i) {
    const int32_t row = b.logit_rows[i];
    if (row < 0 || row >= b.rows())
      return invalid("batch: logit row {} of a batch of {} rows", row, b.rows());
    if (i > 0 && row <= b.logit_rows[i - 1])
      return invalid("batch: logit row {} follows {}, expected ascending rows", row, b.logit_rows[i - 1]);
  }
  return {};
}

Status check_continuations(const Batch& b) {
  if (!b.continuations.empty() && b.sampling.empty())
    return invalid("batch: {} continuations in a step that is not sampled", b.continuations.size());
  int last = -1;
  for (const Continuation& c : b.continuations) {
    if (c.sequence <= last || c.sequence >= std::ssize(b.sequences) || c.source < 0)
      return invalid("batch: a continuation of sequence {} as {} after {}, of {}", c.source, c.sequence, last,
                     b.sequences.size());
    last = c.sequence;
    const Sequence& s = b.sequences[static_cast<size_t>(c.sequence)];
    const int wanted = wanted_rows(b, c.sequence).count;
    if (wanted != s.rows || std::ssize(c.sampling) < s.rows)
      return invalid("batch: sequence {} goes on with {} rows, of which {} give logits and {} are sampled",
                     c.sequence, s.rows, wanted, c.sampling.size());
    RETURN_IF_ERROR(check_sampling(c.sampling));
  }
  return {};
}

}  // namespace

WantedRows wanted_rows(const Batch& batch, int sequence) {
  const Sequence& s = batch.sequences[static_cast<size_t>(sequence)];
  const auto begin = batch.logit_rows.begin();
  const auto first = std::lower_bound(begin, batch.logit_rows.end(), s.first_row),
             last = std::lower_bound(first, batch.logit_rows.end(), s.first_row + s.rows);
  return {.first = static_cast<int>(first - begin), .count = static_cast<int>(last - first)};
}

int most_moved(const Batch& batch, int sequence) {
  const auto c = std::ranges::lower_bound(batch.continuations, sequence, {}, &Continuation::sequence);
  if (c == batch.continuations.end() || c->sequence != sequence) return 0;
  return static_cast<int>(std::ssize(c->sampling)) - batch.sequences[static_cast<size_t>(sequence)].rows;
}

Status validate(const KvLayout& layout) {
  if (layout.page_tokens < 1 || layout.page_tokens > 1 << 16)
    return invalid("KV layout: {} tokens a page, expected 1 to 65536", layout.page_tokens);
  if (layout.full_pages >= 0 && layout.window_pages >= 0) return {};
  return invalid("KV layout: {} full and {} window pages", layout.full_pages, layout.window_pages);
}

Status validate(const Batch& b, const ModelConfig& c, const KvLayout& layout, int max_rows) {
  if (b.tokens.empty() || std::ssize(b.tokens) > max_rows)
    return invalid("batch: {} rows, expected 1 to {}", b.tokens.size(), max_rows);
  if (b.positions.size() != b.tokens.size())
    return invalid("batch: {} positions for {} rows", b.positions.size(), b.tokens.size());
  for (size_t i = 0; i < b.tokens.size(); ++i) {
    if (b.tokens[i] < 0 || b.tokens[i] >= c.vocab)
      return invalid("batch: row {} has token {}, the vocabulary has {}", i, b.tokens[i], c.vocab);
  }
  RETURN_IF_ERROR(check_sequences(b, c, layout));
  RETURN_IF_ERROR(check_logit_rows(b));
  if (!b.sampling.empty() && b.sampling.size() != b.logit_rows.size())
    return invalid("batch: {} rows to sample, but {} logit rows", b.sampling.size(), b.logit_rows.size());
  RETURN_IF_ERROR(check_sampling(b.sampling));
  if (!ascend_below(b.host_rows, std::ssize(b.sampling)))
    return invalid("batch: rows for the host that are not ascending, or not among the {} to sample",
                   b.sampling.size());
  if (!b.token_sources.empty() && b.token_sources.size() != b.tokens.size())
    return invalid("batch: {} sources of tokens for {} rows", b.token_sources.size(), b.tokens.size());
  return check_continuations(b);
}

}  // namespace moesaic
