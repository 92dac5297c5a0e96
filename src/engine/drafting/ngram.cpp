#include "drafting/ngram.h"

namespace moesaic {
namespace {

// A match that overlaps the text's end is a period: the draft goes on with its own tokens.
int32_t following(const DraftTask& task, size_t at) {
  return at < task.tokens.size() ? task.tokens[at] : task.draft[at - task.tokens.size()];
}

}  // namespace

Status NgramDrafter::draft(std::span<DraftTask> tasks) {
  for (DraftTask& task : tasks) {
    TokenIndex& index = indexes_[task.request];
    index.grow(task.tokens);
    matches_.clear();
    index.find(task.tokens, task.tokens, matches_);
    const TokenIndex::Match match = longest(matches_);
    if (match.length == 0) continue;
    task.grade = grade_of(match.length);
    for (int i = 0; i < task.most; ++i)
      task.draft.push_back(following(task, static_cast<size_t>(match.end + i)));
  }
  return {};
}

}  // namespace moesaic
