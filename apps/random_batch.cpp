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
      lengths_(options.sequences, 0),
      own_(options.sequences) {}

Result<RandomBatch> RandomBatch::create(Backend& backend, const ModelConfig& config, const Options& o) {
  ASSIGN_OR_RETURN(
      const KvLayout layout,
      kv_layout(config, {.sequences = o.sequences, .context = o.max_tokens, .max_rows = o.max_rows}));
  RETURN_IF_ERROR(backend.alloc_kv(layout));
  return RandomBatch(backend, config, o, layout);
}

void RandomBatch::add(Batch& batch, int s, int rows) {
  const int context = lengths_[s] + rows;
  MOESAIC_CHECK(pages_.reserve(tables_[s], lengths_[s], context));
  batch.sequences.push_back({.first_row = batch.rows(),
                             .rows = rows,
                             .context = context,
                             .full_pages = tables_[s].full,
                             .window_pages = tables_[s].window});
  for (int& position = lengths_[s]; position < context; ++position) {
    batch.tokens.push_back(position < depth_ ? own_[s][position] : random_token());
    batch.positions.push_back(position);
  }
}

Status RandomBatch::advance(int target, bool logits) {
  for (int s = 0; s < sequences();) {
    Batch batch;
    const int first = s;
    while (s < sequences() && batch.rows() < options_.max_rows) {
      add(batch, s, std::min(target - lengths_[s], options_.max_rows - batch.rows()));
      if (lengths_[s] < target) break;
      if (logits) batch.logit_rows.push_back(batch.rows() - 1);
      ++s;
    }
    if (logits && backend_->can_sample()) batch.sampling.resize(batch.logit_rows.size());
    logits_.resize(batch.sampling.empty() ? batch.logit_rows.size() * config_.vocab : 0);
    RETURN_IF_ERROR(forward(*backend_, config_, batch, logits_));
    for (int i = first; i < first + static_cast<int>(batch.sequences.size()); ++i) {
      pages_.cache_blocks(tables_[i], std::span(own_[i]).first(std::min(lengths_[i], depth_)));
      pages_.slide(tables_[i], lengths_[i]);  // while others take their turn
    }
    const size_t before = std::exchange(in_flight_, batch.sampling.size());
    RETURN_IF_ERROR(take(before));
  }
  return {};
}

Status RandomBatch::take(size_t tokens) {
  if (tokens == 0) return {};
  drawn_.resize(tokens);
  return backend_->sampled(drawn_, {});
}

Status RandomBatch::wait() { return take(std::exchange(in_flight_, 0)); }

Status RandomBatch::restart(int depth) {
  for (PageTable& table : tables_) pages_.release(table);
  depth_ = depth;
  for (int s = 0; s < sequences(); ++s) {
    while (std::ssize(own_[s]) < depth) own_[s].push_back(random_token());
    lengths_[s] = pages_.adopt(tables_[s], std::span(own_[s]).first(depth));
    tables_[s].forks.push_back(depth - 1);  // adopt() leaves the last token to compute
  }
  return depth > 0 ? advance(depth, false) : Status();
}

Status RandomBatch::append(int tokens, bool logits) {
  return advance(lengths_.front() + tokens, logits);  // all are as long
}

}  // namespace moesaic::app
