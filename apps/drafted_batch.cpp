#include "drafted_batch.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/forward.h"

namespace moesaic::app {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the seconds since `begin` and begins anew.
void add_since(Clock::time_point& begin, double& seconds) {
  const Clock::time_point now = Clock::now();
  seconds += std::chrono::duration<double>(now - begin).count();
  begin = now;
}

}  // namespace

DraftedBatch::DraftedBatch(Backend& backend, const ModelConfig& config, const Options& options,
                           const KvLayout& layout, Drafter& drafter)
    : backend_(&backend),
      config_(config),
      options_(options),
      pages_(layout, config.window),
      drafter_(&drafter),
      texts_(options.sequences) {}

Result<DraftedBatch> DraftedBatch::create(Backend& backend, const ModelConfig& config, const Options& o,
                                          Drafter& drafter) {
  ASSIGN_OR_RETURN(
      const KvLayout layout,
      kv_layout(config, {.sequences = o.sequences, .context = o.max_tokens, .max_rows = o.max_rows}));
  RETURN_IF_ERROR(backend.alloc_kv(layout));
  return DraftedBatch(backend, config, o, layout, drafter);
}

int DraftedBatch::length() const {
  size_t longest = 0;
  for (const Text& t : texts_) longest = std::max(longest, t.tokens.size());
  return static_cast<int>(longest);
}

// The text's next rows, those behind its tokens being drafts.
void DraftedBatch::add(Batch& batch, Text& text, std::span<const int32_t> drafts, int rows) {
  const int context = text.computed + rows;
  MOESAIC_CHECK(pages_.reserve(text.pages, text.computed, context));
  batch.sequences.push_back({.first_row = batch.rows(),
                             .rows = rows,
                             .context = context,
                             .full_pages = text.pages.full,
                             .window_pages = text.pages.window});
  for (int position = text.computed; position < context; ++position) {
    const auto at = static_cast<size_t>(position);
    batch.tokens.push_back(at < text.tokens.size() ? text.tokens[at] : drafts[at - text.tokens.size()]);
    batch.positions.push_back(position);
  }
}

// With the logits of every wanted row, as verifying them needs; a device that samples does so.
Status DraftedBatch::run(Batch& batch) {
  if (backend_->can_sample()) batch.sampling.resize(batch.logit_rows.size());
  logits_.resize(batch.sampling.empty() ? batch.logit_rows.size() * static_cast<size_t>(config_.vocab) : 0);
  RETURN_IF_ERROR(forward(*backend_, config_, batch, logits_));
  if (batch.sampling.empty()) return {};
  std::vector<SampledToken> sampled(batch.logit_rows.size());
  return backend_->sampled(sampled, {});
}

// rows: of each sequence of the batch, those that hold.
void DraftedBatch::tell(const Batch& batch, size_t first_text, std::span<const int> rows) {
  std::vector<ComputedRows> hold;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sequence& s = batch.sequences[i];
    hold.push_back({.request = request(first_text + i),
                    .sequence = static_cast<int>(i),
                    .tokens = texts_[first_text + i].tokens,
                    .full_pages = texts_[first_text + i].pages.full,
                    .first_row = s.first_row,
                    .first_position = s.context - s.rows,
                    .rows = rows[i]});
  }
  drafter_->computed(hold, false);
}

Status DraftedBatch::compute_prompt(size_t i) {
  Text& text = texts_[i];
  while (text.computed + 1 < std::ssize(text.tokens)) {
    Batch batch;
    const int rows =
        std::min(options_.max_rows, static_cast<int>(std::ssize(text.tokens)) - 1 - text.computed);
    add(batch, text, {}, rows);
    RETURN_IF_ERROR(forward(*backend_, config_, batch, {}));
    text.computed += rows;
    tell(batch, i, std::span(&rows, 1));
    RETURN_IF_ERROR(drafter_->draft({}));
    pages_.slide(text.pages, text.computed);
  }
  return {};
}

Status DraftedBatch::restart(int depth) {
  RETURN_IF_ERROR(drafter_->draft({}));  // the last step's rows
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (!texts_[i].tokens.empty()) drafter_->end(request(i), texts_[i].tokens, 0);
    pages_.release(texts_[i].pages);
    texts_[i] = {};
  }
  first_request_ += texts_.size();
  for (size_t i = 0; i < texts_.size(); ++i) {
    while (std::ssize(texts_[i].tokens) <= depth) texts_[i].tokens.push_back(random_token());
    RETURN_IF_ERROR(compute_prompt(i));
  }
  // A drafter may compute a text only when it is asked about it, some rows at a time.
  for (int64_t rows = 0; rows <= std::ssize(texts_) * depth; rows += options_.max_rows)
    RETURN_IF_ERROR(draft(1).status());
  return {};
}

// `tokens` for each sequence. What the drafter does not guess is random, as nothing of it is compared.
Result<std::vector<std::vector<int32_t>>> DraftedBatch::draft(size_t tokens) {
  std::vector<DraftTask> tasks;
  for (size_t i = 0; i < texts_.size(); ++i) {
    Text& text = texts_[i];
    const int end = text.computed + 1 + static_cast<int>(tokens);
    MOESAIC_CHECK(pages_.reserve(text.pages, text.computed, end));
    tasks.push_back({.request = request(i),
                     .tokens = text.tokens,
                     .most = static_cast<int>(tokens),
                     .sampling = std::vector<DeviceSampling>(tokens),
                     .full_pages = text.pages.full});
  }
  if (tokens > 0) RETURN_IF_ERROR(drafter_->draft(tasks));
  std::vector<std::vector<int32_t>> drafts;
  for (DraftTask& task : tasks) {
    while (task.draft.size() < tokens) task.draft.push_back(random_token());
    drafts.push_back(std::move(task.draft));
  }
  return drafts;
}

// Multiples of the golden ratio spread evenly over 0 to 1: so short runs have the acceptance length, too,
// that was asked for.
int DraftedBatch::accept(std::span<const double> acceptance) {
  draw_ = std::fmod(draw_ + std::numbers::phi, 1.0);
  int accepted = 0;
  double all = 1;
  for (const double chance : acceptance) {
    if (draw_ >= (all *= chance)) break;
    ++accepted;
  }
  return accepted;
}

Status DraftedBatch::step(std::span<const double> acceptance) {
  Clock::time_point begin = Clock::now();
  ASSIGN_OR_RETURN(const auto drafts, draft(acceptance.size()));
  add_since(begin, times_.draft);
  Batch batch;
  for (size_t i = 0; i < texts_.size(); ++i)
    add(batch, texts_[i], drafts[i], 1 + static_cast<int>(acceptance.size()));
  for (int row = 0; row < batch.rows(); ++row) batch.logit_rows.push_back(row);
  RETURN_IF_ERROR(run(batch));
  add_since(begin, times_.verify);
  std::vector<int> rows;
  for (size_t i = 0; i < texts_.size(); ++i) {
    Text& text = texts_[i];
    const int accepted = accept(acceptance);
    rows.push_back(1 + accepted);
    text.tokens.insert(text.tokens.end(), drafts[i].begin(), drafts[i].begin() + accepted);
    text.tokens.push_back(random_token());
    text.computed += 1 + accepted;
    pages_.trim(text.pages, text.computed);
    pages_.slide(text.pages, text.computed);
    times_.tokens += 1 + accepted;
  }
  if (!acceptance.empty()) tell(batch, 0, rows);
  add_since(begin, times_.take_back);
  ++times_.steps;
  return {};
}

}  // namespace moesaic::app
