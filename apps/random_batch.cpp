#include "random_batch.h"

#include <algorithm>

#include "base/error.h"
#include "engine/kv_layout.h"
#include "model/forward.h"

namespace moesaic::app {

RandomBatch::RandomBatch(Backend& backend, const ModelConfig& config, const Options& options,
                         const KvLayout& layout)
    : backend_(&backend),
      config_(config),
      options_(options),
      pages_(layout, config.window),
      tables_(options.sequences),
      lengths_(options.sequences, 0) {}

Result<RandomBatch> RandomBatch::create(Backend& backend, const ModelConfig& config, const Options& o) {
  ASSIGN_OR_RETURN(
      const KvLayout layout,
      kv_layout(config, {.sequences = o.sequences, .context = o.max_tokens, .max_rows = o.max_rows}));
  RETURN_IF_ERROR(check_kv_memory(layout, config, backend));
  RETURN_IF_ERROR(backend.alloc_kv(layout));
  return RandomBatch(backend, config, o, layout);
}

void RandomBatch::reset() {
  for (PageTable& table : tables_) pages_.release(table);
  std::fill(lengths_.begin(), lengths_.end(), 0);
}

// One step of `rows` tokens for each of `count` sequences from `first` on.
Status RandomBatch::step(int first, int count, int rows, bool logits) {
  Batch batch;
  for (int s = first; s < first + count; ++s) {
    const int context = lengths_[s] + rows;
    MOESAIC_CHECK(pages_.reserve(tables_[s], lengths_[s], context));
    batch.sequences.push_back({.first_row = batch.rows(),
                               .rows = rows,
                               .context = context,
                               .full_pages = tables_[s].full,
                               .window_pages = tables_[s].window});
    for (int position = lengths_[s]; position < context; ++position) {
      batch.tokens.push_back(static_cast<int32_t>(rng_() % config_.vocab));
      batch.positions.push_back(position);
    }
    if (logits) batch.logit_rows.push_back(batch.rows() - 1);
    lengths_[s] = context;
    pages_.slide(tables_[s], context);  // while others take their turn
  }
  if (logits && backend_->can_draw()) batch.draws.resize(batch.logit_rows.size());
  logits_.resize(batch.draws.empty() ? batch.logit_rows.size() * config_.vocab : 0);
  RETURN_IF_ERROR(forward(*backend_, config_, batch, logits_));
  const size_t before = std::exchange(under_way_, batch.draws.size());
  return take(before);
}

Status RandomBatch::take(size_t tokens) {
  if (tokens == 0) return {};
  drawn_.resize(tokens);
  return backend_->drawn(drawn_);
}

Status RandomBatch::wait() { return take(std::exchange(under_way_, 0)); }

Status RandomBatch::append(int tokens, bool logits) {
  // Whole short sequences share a step; a long one takes several.
  const int together = std::clamp(options_.max_rows / tokens, 1, options_.sequences);
  for (int first = 0; first < options_.sequences; first += together) {
    const int count = std::min(together, options_.sequences - first);
    for (int done = 0; done < tokens; done += options_.max_rows) {
      const int rows = std::min(tokens - done, options_.max_rows);
      RETURN_IF_ERROR(step(first, count, rows, logits && done + rows == tokens));
    }
  }
  return {};
}

}  // namespace moesaic::app
