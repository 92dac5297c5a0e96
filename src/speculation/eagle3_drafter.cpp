#include "speculation/eagle3_drafter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace moesaic {

void Eagle3Drafter::computed(std::span<const ComputedRows> rows) {
  for (const ComputedRows& r : rows) {
    const auto first = static_cast<size_t>(r.first_position), behind = first + static_cast<size_t>(r.rows);
    const size_t known = std::min(behind + 1, r.tokens.size());
    pending_.push_back(
        {.request = r.request,
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
  p.sequence.drafts = std::min(task.most, kMostDrafts);
  p.sequence.sampling = task.sampling;
  p.sequence.sampling.resize(static_cast<size_t>(p.sequence.drafts));
  p.sequence.full_pages.assign(task.full_pages.begin(), task.full_pages.end());
  return true;
}

Status Eagle3Drafter::draft(std::span<DraftTask> tasks) {
  if (pending_.empty()) return {};
  std::vector<DraftSequence> sequences;
  std::vector<DraftTask*> drafted;  // whose sequences want drafts, in their order
  for (Pending& p : std::exchange(pending_, {})) {
    const auto task =
        std::find_if(tasks.begin(), tasks.end(), [&](const DraftTask& t) { return complete(p, t); });
    if (task != tasks.end() && p.sequence.drafts > 0) drafted.push_back(&*task);
    // The token that follows is not known: the row's own stands in, so that the place holds something that is
    // nearly right.
    p.sequence.next_tokens.resize(static_cast<size_t>(p.rows), p.last);
    sequences.push_back(std::move(p.sequence));
  }
  size_t wanted = 0;
  for (const DraftSequence& s : sequences) wanted += static_cast<size_t>(s.drafts);
  std::vector<int32_t> tokens(wanted, -1);
  RETURN_IF_ERROR(head_->draft(sequences, tokens));
  auto at = tokens.begin();
  for (DraftTask* task : drafted) {
    const auto end = at + std::min(task->most, kMostDrafts);
    task->draft.assign(at, std::find(at, end, -1));
    at = end;
  }
  return {};
}

}  // namespace moesaic
