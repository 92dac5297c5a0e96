#include "engine/speculator.h"

#include <algorithm>

namespace moesaic {
namespace {

// Tokens behind the last known one that may be guessed: one more is sampled from the last row.
int room(const Request& r) { return r.limit - static_cast<int>(r.tokens.size()) - 1; }

}  // namespace

std::vector<DraftTask> Speculator::ask(std::span<Request* const> requests, int most) {
  std::vector<DraftTask> tasks;
  for (const Request* r : requests) {
    DraftTask& task = tasks.emplace_back(DraftTask{.request = r->id,
                                                   .tokens = r->tokens,
                                                   .prompt_tokens = r->prompt_tokens,
                                                   .most = std::clamp(room(*r), 0, most)});
    for (int i = 0; i < task.most; ++i) task.sampling.push_back(r->sampler->draft_sampling(i));
  }
  // A drafter that fails has no guesses: the requests go on without.
  if (!drafter_->draft(tasks).ok()) {
    for (DraftTask& task : tasks) task.draft.clear();
  }
  for (DraftTask& task : tasks)
    task.draft.resize(std::min(task.draft.size(), static_cast<size_t>(task.most)));
  return tasks;
}

void Speculator::draft(std::span<Request* const> requests, int, int free_rows) {
  std::vector<DraftTask> tasks = ask(requests, std::min(draft_tokens_, free_rows));
  for (size_t i = 0; i < tasks.size(); ++i) {
    std::vector<int32_t>& draft = tasks[i].draft;
    draft.resize(std::min(draft.size(), static_cast<size_t>(free_rows)));
    free_rows -= static_cast<int>(draft.size());
    requests[i]->draft = std::move(draft);
  }
}

// The first guess is of the token in flight.
bool Speculator::would_draft(std::span<Request* const> requests, int) {
  const std::vector<DraftTask> tasks = ask(requests, std::min(draft_tokens_ + 1, kMostDraft));
  return std::any_of(tasks.begin(), tasks.end(), [](const DraftTask& t) { return t.draft.size() > 1; });
}

void Speculator::verified(Request& r) {
  const auto tokens = static_cast<int>(r.draft.size());
  stats_.add(tokens, r.accepted);
  r.drafted.stats.add(tokens, r.accepted);
}

}  // namespace moesaic
