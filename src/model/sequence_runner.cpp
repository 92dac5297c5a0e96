#include "model/sequence_runner.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/forward.h"

namespace moesaic {
namespace {

int pages_of(int tokens, int page_tokens) { return (tokens + page_tokens - 1) / page_tokens; }

}  // namespace

KvLayout SequenceRunner::layout() const {
  // window + chunk tokens that start anywhere in a page; never more than the whole sequence.
  const int full = pages_of(options_.max_tokens, options_.page_tokens);
  const int spanned = pages_of(config_.window + options_.chunk, options_.page_tokens) + 1;
  return {.page_tokens = options_.page_tokens, .full_pages = full, .window_pages = std::min(full, spanned)};
}

Result<SequenceRunner> SequenceRunner::create(Backend& backend, const ModelConfig& config,
                                              const Options& options) {
  if (options.max_tokens < 1 || options.max_tokens > config.max_context)
    return invalid("a sequence of {} tokens: the model takes 1 to {}", options.max_tokens,
                   config.max_context);
  if (options.chunk < 1 || options.page_tokens < 1)
    return invalid("chunks of {} rows, pages of {} tokens: expected at least 1", options.chunk,
                   options.page_tokens);
  SequenceRunner runner(backend, config, options);
  RETURN_IF_ERROR(backend.alloc_kv(runner.layout()));
  return runner;
}

Batch SequenceRunner::next_batch(std::span<const int32_t> tokens) const {
  const auto rows = static_cast<int>(tokens.size());
  Batch b;
  b.tokens.assign(tokens.begin(), tokens.end());
  b.positions.resize(tokens.size());
  std::iota(b.positions.begin(), b.positions.end(), length_);
  Sequence s{.first_row = 0, .rows = rows, .context = length_ + rows, .full_pages = {}, .window_pages = {}};
  const KvLayout kv = layout();
  const int first_needed = std::max(0, length_ - config_.window + 1) / kv.page_tokens;
  for (int page = 0; page < pages_of(s.context, kv.page_tokens); ++page) {
    s.full_pages.push_back(page);
    s.window_pages.push_back(page < first_needed ? -1 : page % kv.window_pages);
  }
  b.sequences.push_back(std::move(s));
  return b;
}

Status SequenceRunner::append(std::span<const int32_t> tokens, Wanted wanted, std::vector<float>& logits) {
  logits.clear();
  const auto vocab = static_cast<size_t>(config_.vocab);
  if (length_ + std::ssize(tokens) > options_.max_tokens)
    return invalid("{} tokens after {}: the sequence was made for {}", tokens.size(), length_,
                   options_.max_tokens);
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min(tokens.size(), static_cast<size_t>(options_.chunk)));
    tokens = tokens.subspan(part.size());
    Batch batch = next_batch(part);
    if (wanted == Wanted::kAll) {
      batch.logit_rows.resize(part.size());
      std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    } else if (wanted == Wanted::kLast && tokens.empty()) {
      batch.logit_rows.push_back(batch.rows() - 1);
    }
    const size_t before = logits.size();
    logits.resize(before + batch.logit_rows.size() * vocab);
    RETURN_IF_ERROR(forward(*backend_, config_, batch, std::span(logits).subspan(before)));
    length_ += batch.rows();
  }
  return {};
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace moesaic
