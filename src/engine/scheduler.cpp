#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {

bool Scheduler::schedule(Request& r, int rows, ScheduledBatch& out) {
  if (!pages_.reserve(r.pages, r.computed, r.computed + rows)) return false;
  Batch& b = out.batch;
  const int first = b.rows();
  for (int i = 0; i < rows; ++i) {
    b.tokens.push_back(r.tokens[r.computed + i]);
    b.positions.push_back(r.computed + i);
  }
  b.sequences.push_back({.first_row = first,
                         .rows = rows,
                         .context = r.computed + rows,
                         .full_pages = r.pages.full,
                         .window_pages = r.pages.window});
  if (r.computed + rows == static_cast<int>(r.tokens.size())) {
    b.logit_rows.push_back(first + rows - 1);
    out.wanted.push_back(&r);
  }
  out.advances.emplace_back(&r, rows);
  return true;
}

ScheduledBatch Scheduler::next_batch() {
  ScheduledBatch out;
  const auto missing = [](const Request& r) { return static_cast<int>(r.tokens.size()) - r.computed; };
  for (const bool decode : {true, false}) {
    for (const auto& r : requests_) {
      const int rows = std::min(missing(*r), max_rows_ - out.batch.rows());
      if (r->done() || (missing(*r) == 1 && r->generated() > 0) != decode || rows <= 0) continue;
      if (!schedule(*r, rows, out) && !decode) break;  // later prompts must not overtake this one
    }
  }
  if (out.batch.rows() == 0 && !requests_.empty()) {
    Request& stuck = *requests_.front();
    stuck.error = error(StatusCode::kOutOfMemory, "the KV cache is full after {} tokens; give a larger --ctx",
                        stuck.computed);
    stuck.finish = FinishReason::kError;
  }
  return out;
}

void Scheduler::collect() {
  for (const auto& r : requests_) {
    if (r->done()) pages_.release(r->pages);
  }
  std::erase_if(requests_, [](const auto& r) { return r->done(); });
}

}  // namespace moesaic
