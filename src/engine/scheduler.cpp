#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {

void Scheduler::keep(Request& r) {
  MOESAIC_CHECK(!kept_);
  // A step under way may go on behind an end that it did not know of: the last one's place is nobody's.
  const int sure = std::min(r.computed, static_cast<int>(r.tokens.size()));
  kept_ = Kept{.tokens = {r.tokens.begin(), r.tokens.begin() + sure},
               .pages = std::exchange(r.pages, {}),
               .hold = hold_of(r)};
}

void Scheduler::take_over(Request& r) {
  if (!kept_) return;
  Kept kept = std::exchange(kept_, {}).value();
  const auto same = std::mismatch(kept.tokens.begin(), kept.tokens.end(), r.tokens.begin(), r.tokens.end());
  const auto common = static_cast<int>(same.first - kept.tokens.begin());
  const auto size = static_cast<int>(r.tokens.size());
  // At least one token is left to compute: its logits are wanted.
  if (common == std::ssize(kept.tokens) && common < size)
    r.reused = common;
  else if (common >= kept.hold && kept.hold < size)
    r.reused = kept.hold;
  pages_.truncate(kept.pages, r.reused);
  r.pages = std::move(kept.pages);
  r.computed = r.reused;
}

void Scheduler::schedule(const std::shared_ptr<Request>& request, int rows, ScheduledBatch& out) {
  Request& r = *request;
  MOESAIC_CHECK(pages_.reserve(r.pages, r.computed, r.computed + rows, reuse_ ? hold_of(r) : -1));
  Batch& b = out.batch;
  const int first = b.rows();
  for (int position = r.computed; position < r.computed + rows; ++position) {
    const bool known = position < std::ssize(r.tokens);
    b.tokens.push_back(known ? r.tokens[position] : 0);
    b.drawn.push_back(known ? -1 : r.drawn);
    b.positions.push_back(position);
  }
  if (r.computed == r.reused) counted_.prompt_tokens += r.prompt_tokens, counted_.prefix_hits += r.reused;
  r.computed += rows;
  b.sequences.push_back({.first_row = first,
                         .rows = rows,
                         .context = r.computed,
                         .full_pages = r.pages.full,
                         .window_pages = r.pages.window});
  if (r.computed < r.length()) return;
  b.logit_rows.push_back(first + rows - 1);
  out.wanted.push_back(request);
}

// None where the host has to sample one of them.
std::vector<Draw> Scheduler::draws_of(const ScheduledBatch& scheduled) {
  std::vector<Draw> draws;
  for (const auto& r : scheduled.wanted) {
    const auto draw = r->sampler->draw_elsewhere(r->length() - static_cast<int>(r->tokens.size()));
    if (!draw) return {};
    draws.push_back(*draw);
  }
  return draws;
}

ScheduledBatch Scheduler::next_batch(bool draws) {
  ScheduledBatch out;
  const size_t admitted = std::min(requests_.size(), static_cast<size_t>(max_batch_));
  if (admitted > 0 && requests_[0]->computed == 0) take_over(*requests_[0]);
  for (const bool decode : {true, false}) {
    for (size_t i = 0; i < admitted; ++i) {
      const Request& r = *requests_[i];
      const int missing = r.length() < r.limit ? r.length() - r.computed : 0;
      const int rows = std::min(missing, max_rows_ - out.batch.rows());
      const bool decodes = missing == 1 && r.length() > r.prompt_tokens;
      if (rows > 0 && decodes == decode) schedule(requests_[i], rows, out);
    }
  }
  if (draws) out.batch.draws = draws_of(out);
  return out;
}

EngineStats Scheduler::stats() const {
  EngineStats s = counted_;
  s.running = static_cast<int>(std::min(requests_.size(), static_cast<size_t>(max_batch_)));
  s.waiting = static_cast<int>(requests_.size()) - s.running;
  s.full = pages_.full_use(), s.window = pages_.window_use();
  return s;
}

void Scheduler::fail_all(const Status& status) {
  for (const auto& r : requests_) {
    r->error = status;
    r->finish = FinishReason::kError;
  }
}

void Scheduler::collect() {
  for (const auto& r : requests_) {
    if (r->cancelled && !r->done()) r->finish = FinishReason::kCancelled;
  }
  for (const auto& r : requests_) {
    const bool sound = r->error.ok() && r->computed > 0;
    if (r->done() && reuse_ && sound)
      keep(*r);
    else if (r->done())
      pages_.release(r->pages);
  }
  std::erase_if(requests_, [](const auto& r) { return r->done(); });
}

}  // namespace moesaic
