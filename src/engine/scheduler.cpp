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
// Whether it may have a draft once its last token is known: it decodes, and more than one token is left.
bool may_draft(const Request& r) {
  return r.speculate && r.held.empty() && decodes(r) && r.length() + 1 < r.limit;
}
// Of its next `rows` rows, those of the prompt whose logits are still to be shown.
int shown_rows(const Request& r, int rows) {
  if (!r.on_prompt_logits) return 0;
  const int end = std::min(r.computed + rows, r.prompt_tokens - 1);
  return std::max(0, end - std::max(r.computed, r.prompt_rows_shown));
}

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
    out.draft_rows.push_back(0);
  }
}

void Scheduler::plan(const std::shared_ptr<Request>& request, int rows, Plan& plan) {
  Request& r = *request;
  MOESAIC_CHECK(pages_.reserve(r.pages, r.computed, r.computed + rows));
  plan.parts.push_back({request, rows});
  plan.rows += rows;
  plan.shown_rows += shown_rows(r, rows);
}

int Scheduler::rows_for(const Request& r, const Plan& plan) const {
  const int rows = std::min(missing(r), options_.max_rows - plan.rows);
  return shows_prompt(r) ? std::min(rows, kShownRows - plan.shown_rows) : rows;
}

void Scheduler::admit(Plan& plan) {
  while (!waiting_.empty() && std::ssize(running_) < options_.max_batch && plan.rows < options_.max_rows) {
    if (!begin(*waiting_.front())) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    const int rows = rows_for(*running_.back(), plan);
    if (rows > 0) this->plan(running_.back(), rows, plan);
  }
}

// A page for each that runs is left free, as for a request that begins. Pages of a longer draft that was
// reserved for before go back.
int Scheduler::reserve_draft(Request& r, int tokens) {
  const int known = r.computed + 1;
  const int room = static_cast<int>(r.pages.window.size()) * pages_.page_tokens() - known;
  if (tokens > room &&
      !pages_.reserve(r.pages, r.computed, known + tokens, static_cast<int>(running_.size())))
    return room;
  pages_.trim(r.pages, known + tokens);
  return tokens;
}

void Scheduler::add_drafts(const Plan& plan) {
  if (speculator_ == nullptr || plan.parts.empty()) return;
  std::vector<Request*> decoding;
  for (const Plan::Part& part : plan.parts) {
    if (may_draft(*part.request) && part.request->in_flight < 0) decoding.push_back(part.request.get());
  }
  const int free_rows = options_.max_rows - plan.rows;
  if (free_rows <= 0) decoding.clear();
  speculator_->draft(decoding, plan.rows, free_rows,
                     [this](Request& r, int tokens) { return reserve_draft(r, tokens); });
}

void Scheduler::schedule(const Plan::Part& part, ScheduledBatch& out) {
  Request& r = *part.request;
  Batch& b = out.batch;
  const int first = b.rows(), drafted = static_cast<int>(r.draft.size());
  for (int position = r.computed; position < r.computed + part.rows; ++position) {
    const bool known = position < std::ssize(r.tokens);
    b.tokens.push_back(known ? r.tokens[position] : 0);
    b.token_sources.push_back(known ? -1 : r.in_flight);
    b.positions.push_back(position);
  }
  for (int i = 0; i < drafted; ++i) {
    b.tokens.push_back(r.draft[i]);
    b.token_sources.push_back(-1);
    b.positions.push_back(r.computed + part.rows + i);
  }
  want_prompt_rows(part.request, first, part.rows, out);
  r.computed += part.rows + drafted;
  r.accepted = 0;
  out.requests.push_back(part.request);
  b.sequences.push_back(
      {.first_row = first,
       .rows = part.rows + drafted,
       .context = r.computed,
       .full_pages = {r.pages.full.begin(), r.pages.full.begin() + std::ssize(r.pages.window)},
       .window_pages = r.pages.window});
  if (r.computed < r.length()) return;
  for (int i = 0; i <= drafted; ++i) {
    b.logit_rows.push_back(first + part.rows - 1 + i);
    out.wanted.push_back(part.request);
    out.prompt_rows.push_back(false);
    out.draft_rows.push_back(i);
  }
  out.drafts |= drafted > 0;
}

void Scheduler::end_draft(Request& r) {
  if (r.draft.empty()) return;
  if (speculator_ != nullptr) speculator_->verified(r);
  r.computed -= static_cast<int>(r.draft.size()) - r.accepted;
  r.draft.clear();
  pages_.trim(r.pages, r.computed);
}

bool Scheduler::would_draft() {
  std::vector<Request*> waiting;
  for (const auto& r : running_) {
    if (may_draft(*r) && r->in_flight >= 0) waiting.push_back(r.get());
  }
  const auto rows = static_cast<int>(waiting.size());
  return speculator_ != nullptr && rows > 0 &&
         speculator_->would_draft(waiting, rows, options_.max_rows - rows);
}

// None where the host has to sample one of them.
std::vector<DeviceSampling> Scheduler::device_sampling_of(const ScheduledBatch& scheduled) {
  std::vector<DeviceSampling> sampling;
  for (size_t i = 0; i < scheduled.wanted.size(); ++i) {
    const Request* r = scheduled.wanted[i].get();
    if (r->on_logits || shows_prompt(*r)) return {};
    const int in_flight = r->length() - static_cast<int>(r->tokens.size());
    const auto one = r->sampler->device_sampling(in_flight + scheduled.draft_rows[i]);
    if (!one) return {};
    sampling.push_back(*one);
  }
  return sampling;
}

ScheduledBatch Scheduler::next_batch(bool device_samples) {
  for (const auto& r : running_) {
    MOESAIC_CHECK(r->draft.empty());
    cache_blocks(*r);
    pages_.slide(r->pages, r->computed);
  }
  Plan plan;
  const uint64_t preemptions = counted_.preemptions;
  for (size_t i = 0; i < running_.size(); ++i) {
    const auto r = running_[i];
    if (decodes(*r) && make_room(*r)) this->plan(r, 1, plan);
  }
  for (const auto& r : running_) {
    const int rows = decodes(*r) ? 0 : rows_for(*r, plan);
    if (rows > 0) this->plan(r, rows, plan);
  }
  if (counted_.preemptions == preemptions) admit(plan);
  add_drafts(plan);
  ScheduledBatch out;
  for (const Plan::Part& part : plan.parts) schedule(part, out);
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
      if (speculator_ != nullptr) speculator_->ended(*r);
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
