#include "drafting/eagle3_drafter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace moesaic {

int& Eagle3Drafter::from(int32_t page) {
  if (page >= std::ssize(from_)) from_.resize(static_cast<size_t>(page) + 1, kPageTokens);
  return from_[static_cast<size_t>(page)];
}

void Eagle3Drafter::mark(std::span<const int32_t> pages, int first, int end, bool taken) {
  for (int position = first; position < end;) {
    const int begin = position % kPageTokens, behind = std::min(kPageTokens, begin + end - position);
    int& from = this->from(pages[static_cast<size_t>(position / kPageTokens)]);
    if (!taken) from = behind;
    if (taken && begin == 0) from = 0;
    position += behind - begin;
  }
}

int Eagle3Drafter::begin_of(std::span<const int32_t> pages, int first) const {
  for (int page = (first - 1) / kPageTokens; first > 0 && page >= 0; --page) {
    const int32_t id = pages[static_cast<size_t>(page)];
    const int from = id < std::ssize(from_) ? from_[static_cast<size_t>(id)] : kPageTokens;
    if (from > 0) return std::min(first, page * kPageTokens + from);
  }
  return 0;
}

void Eagle3Drafter::skip() {
  for (const Pending& p : std::exchange(pending_, {})) mark(p.pages, p.first, p.position, false);
}

// Rows that only hold if drafts are accepted are marked once that is known, in computed(). Until then nobody
// looks back on them: the next step's first row, at least, is the one behind those that are sure.
Result<int64_t> Eagle3Drafter::begin_draft(std::span<SequenceAhead> sequences, const Batch& step) {
  skip();
  const auto first = [&](const SequenceAhead& a) {
    return step.positions[static_cast<size_t>(step.sequences[static_cast<size_t>(a.sequence)].first_row)];
  };
  for (SequenceAhead& a : sequences) a.begin = begin_of(a.full_pages, first(a));
  Result<int64_t> begun = head_->begin_draft(sequences);
  for (const SequenceAhead& a : sequences) {
    const int drafted = std::max(0, wanted_rows(step, a.sequence).count - 1);
    const int sure = step.sequences[static_cast<size_t>(a.sequence)].rows - drafted;
    mark(a.full_pages, first(a), first(a) + sure, begun.ok());
  }
  return begun;
}

void Eagle3Drafter::loaded(std::span<const int32_t> full_pages) {
  for (const int32_t page : full_pages) from(page) = kPageTokens;
}

// Rows that are still pending belong to an earlier step: after a rest, its hidden states are gone.
void Eagle3Drafter::computed(std::span<const ComputedRows> rows, bool begun) {
  if (rows.empty()) return;
  skip();
  for (const ComputedRows& r : rows) {
    if (begun) {
      mark(r.full_pages, r.first_position, r.first_position + r.rows, true);
      continue;
    }
    const auto first = static_cast<size_t>(r.first_position), behind = first + static_cast<size_t>(r.rows);
    const size_t known = std::min(behind + 1, r.tokens.size());
    pending_.push_back(
        {.request = r.request,
         .first = r.first_position,
         .position = static_cast<int>(behind),
         .last = r.tokens[behind - 1],
         .pages = {r.full_pages.begin(), r.full_pages.end()},
         .rows = r.rows,
         .sequence = {.sequence = r.sequence,
                      .next_tokens = {r.tokens.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                                      r.tokens.begin() + static_cast<std::ptrdiff_t>(known)}}});
  }
}

// False where the task does not go on from these rows, and where the prefix cache has put another request's
// page in the place of one that was just filled: that request's rows may be taken in, too, and two must not
// write to the same place.
bool Eagle3Drafter::complete(Pending& p, const DraftTask& task) {
  if (p.request != task.request || p.position + 1 != std::ssize(task.tokens)) return false;
  const size_t pages = std::min(p.pages.size(), task.full_pages.size());
  if (!std::ranges::equal(task.full_pages.first(pages), std::span(p.pages).first(pages))) return false;
  p.sequence.next_tokens.resize(static_cast<size_t>(p.rows), task.tokens.back());
  p.sequence.drafts = task.most;
  p.sequence.sampling = task.sampling;
  p.sequence.sampling.resize(static_cast<size_t>(p.sequence.drafts));
  p.sequence.full_pages.assign(task.full_pages.begin(), task.full_pages.end());
  return true;
}

Status Eagle3Drafter::draft(std::span<DraftTask> tasks) {
  std::vector<Pending> pending = std::exchange(pending_, {});
  if (pending.empty()) return {};
  std::vector<DraftSequence> sequences;
  std::vector<DraftTask*> drafted;  // those whose sequences want drafts, in their order
  size_t wanted = 0;
  for (Pending& p : pending) {
    const auto task =
        std::find_if(tasks.begin(), tasks.end(), [&](const DraftTask& t) { return complete(p, t); });
    if (task != tasks.end() && p.sequence.drafts > 0) drafted.push_back(&*task);
    // The token that follows is not known: the row's own stands in, so that the place holds something that is
    // nearly right.
    p.sequence.next_tokens.resize(static_cast<size_t>(p.rows), p.last);
    p.sequence.begin = begin_of(p.pages, p.first);
    wanted += static_cast<size_t>(p.sequence.drafts);
    sequences.push_back(std::move(p.sequence));
  }
  std::vector<int32_t> tokens(wanted, -1);
  const Status status = head_->draft(sequences, tokens);
  for (const Pending& p : pending) mark(p.pages, p.first, p.position, status.ok());
  RETURN_IF_ERROR(status);
  auto at = tokens.begin();
  for (DraftTask* task : drafted) {
    const auto end = at + task->most;
    task->draft.assign(at, std::find(at, end, -1));
    at = end;
  }
  return {};
}

}  // namespace moesaic
