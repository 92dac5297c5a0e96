#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace moesaic {
namespace {

// The most rows of prompts whose logits a step shows: 64 rows of 200,000 floats are 51 MB.
constexpr int kShownRows = 64;

// Tokens that the next step could compute.
int missing(const Request& r) { return r.length() < r.limit ? r.length() - r.computed : 0; }
// Whether logits of its prompt are still to be shown.
bool shows_prompt(const Request& r) {
  return r.on_prompt_logits && r.prompt_rows_shown < r.prompt_tokens - 1;
}
bool decodes(const Request& r) { return missing(r) == 1 && r.length() > r.prompt_tokens; }

}  // namespace

void Scheduler::cache_blocks(Request& r) {
  if (!options_.prefix_cache) return;
  // A step in flight may have computed one position too many, launched before the request's end was known.
  const auto sure = std::min(static_cast<size_t>(r.computed), r.tokens.size());
  pages_.cache_blocks(r.pages, std::span(r.tokens).first(sure));
}

// A page for each that runs is left free: soon they will need it.
bool Scheduler::begin(Request& r) {
  const bool looks = options_.prefix_cache && r.reuse_prefix;
  const int cached = looks ? pages_.adopt(r.pages, r.tokens) : 0;
  if (!pages_.extend(r.pages, static_cast<int>(r.tokens.size()), static_cast<int>(running_.size()))) {
    pages_.release(r.pages);
    return false;
  }
  // The next turn of a conversation goes on from this prompt, and the same prompt may be asked again.
  r.pages.forks.insert(r.pages.forks.end(), {r.prompt_tokens, r.prompt_tokens - 1});
  r.computed = cached;
  if (r.begun) return true;
  r.begun = true;
  r.reused = cached;
  if (options_.prefix_cache) r.kept = std::max(0, pages_.shareable(r.prompt_tokens) - cached);
  counted_.prompt_tokens += r.prompt_tokens;
  counted_.prefix_queried += looks ? r.prompt_tokens : 0;
  counted_.prefix_hits += cached;
  return true;
}

void Scheduler::preempt_youngest() {
  Request& r = *running_.back();
  pages_.release(r.pages);
  r.computed = 0;
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++counted_.preemptions;
}

// For one token more. False: the request itself was the youngest.
bool Scheduler::make_room(Request& r) {
  while (!pages_.reserve(r.pages, r.computed, r.computed + 1)) {
    const bool itself = running_.back().get() == &r;
    preempt_youngest();
    if (itself) return false;
  }
  return true;
}

// Those among the next `rows` that were not shown before the request was preempted.
void Scheduler::want_prompt_rows(const std::shared_ptr<Request>& request, int first_row, int rows,
                                 ScheduledBatch& out) {
  const Request& r = *request;
  if (!r.on_prompt_logits) return;
  const int end = std::min(r.computed + rows, r.prompt_tokens - 1);
  for (int position = std::max(r.computed, r.prompt_rows_shown); position < end; ++position) {
    out.batch.logit_rows.push_back(first_row + position - r.computed);
    out.wanted.push_back(request);
    out.prompt_rows.push_back(true);
  }
}

void Scheduler::schedule(const std::shared_ptr<Request>& request, int rows, ScheduledBatch& out) {
  Request& r = *request;
  MOESAIC_CHECK(pages_.reserve(r.pages, r.computed, r.computed + rows));
  Batch& b = out.batch;
  const int first = b.rows();
  for (int position = r.computed; position < r.computed + rows; ++position) {
    const bool known = position < std::ssize(r.tokens);
    b.tokens.push_back(known ? r.tokens[position] : 0);
    b.token_sources.push_back(known ? -1 : r.in_flight);
    b.positions.push_back(position);
  }
  want_prompt_rows(request, first, rows, out);
  r.computed += rows;
  b.sequences.push_back(
      {.first_row = first,
       .rows = rows,
       .context = r.computed,
       .full_pages = {r.pages.full.begin(), r.pages.full.begin() + std::ssize(r.pages.window)},
       .window_pages = r.pages.window});
  if (r.computed < r.length()) return;
  b.logit_rows.push_back(first + rows - 1);
  out.wanted.push_back(request);
  out.prompt_rows.push_back(false);
}

int Scheduler::rows_for(const Request& r, const ScheduledBatch& out) const {
  const int rows = std::min(missing(r), options_.max_rows - out.batch.rows());
  if (!shows_prompt(r)) return rows;
  const auto shown = std::count(out.prompt_rows.begin(), out.prompt_rows.end(), true);
  return std::min(rows, kShownRows - static_cast<int>(shown));
}

void Scheduler::admit(ScheduledBatch& out) {
  while (!waiting_.empty() && std::ssize(running_) < options_.max_batch &&
         out.batch.rows() < options_.max_rows) {
    if (!begin(*waiting_.front())) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    const int rows = rows_for(*running_.back(), out);
    if (rows > 0) schedule(running_.back(), rows, out);
  }
}

// None where the host has to sample one of them.
std::vector<DeviceSampling> Scheduler::device_sampling_of(const ScheduledBatch& scheduled) {
  std::vector<DeviceSampling> sampling;
  for (const auto& r : scheduled.wanted) {
    if (r->on_logits || shows_prompt(*r)) return {};
    const auto one = r->sampler->device_sampling(r->length() - static_cast<int>(r->tokens.size()));
    if (!one) return {};
    sampling.push_back(*one);
  }
  return sampling;
}

ScheduledBatch Scheduler::next_batch(bool device_samples) {
  ScheduledBatch out;
  for (const auto& r : running_) {
    cache_blocks(*r);
    pages_.slide(r->pages, r->computed);
  }
  const uint64_t preemptions = counted_.preemptions;
  for (size_t i = 0; i < running_.size(); ++i) {
    const auto r = running_[i];
    if (decodes(*r) && make_room(*r)) schedule(r, 1, out);
  }
  for (const auto& r : running_) {
    const int rows = rows_for(*r, out);
    if (rows > 0) schedule(r, rows, out);
  }
  if (counted_.preemptions == preemptions) admit(out);
  if (device_samples) out.batch.sampling = device_sampling_of(out);
  return out;
}

void Scheduler::fail_all(const Status& status) {
  doubtful_ = true;
  for (auto* requests : {&running_, &waiting_}) {
    for (const auto& r : *requests) {
      r->error = status;
      r->finish = FinishReason::kError;
    }
  }
}

void Scheduler::collect() {
  for (auto* requests : {&running_, &waiting_}) {
    for (const auto& r : *requests) {
      if (!r->done() && r->cancel.stop_requested()) r->finish = FinishReason::kCancelled;
      if (!r->done()) continue;
      doubtful_ |= r->error.code() == StatusCode::kInternal;  // a logit that is not finite
      if (!doubtful_) cache_blocks(*r);
      pages_.release(r->pages);
    }
    std::erase_if(*requests, [](const auto& r) { return r->done(); });
  }
  if (!std::exchange(doubtful_, false)) return;
  pages_.forget();
  for (const auto& r : running_) r->pages.cached_blocks = 0;
}

EngineStats Scheduler::stats() const {
  EngineStats s = counted_;
  s.running = static_cast<int>(running_.size());
  s.waiting = static_cast<int>(waiting_.size());
  s.full = pages_.full_use(), s.window = pages_.window_use();
  return s;
}

void Scheduler::check() const {
  std::vector<const PageTable*> tables;
  for (const auto& r : running_) tables.push_back(&r->pages);
  pages_.check(tables);
}

}  // namespace moesaic
