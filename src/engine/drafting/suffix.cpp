#include "drafting/suffix.h"

#include <algorithm>
#include <utility>

namespace moesaic {
namespace {

constexpr int32_t kEnd = -1;            // no token: an answer ends
constexpr int kLong = 8;                // matches of so many tokens count alike
constexpr double kLeastShare = 0.1;     // share of the votes: a draft ends where it falls below
constexpr double kClearMajority = 0.6;  // share of the first token's votes; a draft with less is of grade 0

// Returns the token that the text goes on with; kEnd: it does not go on.
int32_t token_at(std::span<const int32_t> text, size_t at) { return at < text.size() ? text[at] : kEnd; }

}  // namespace

void SuffixDrafter::find(std::span<const int32_t> text, const TokenIndex& index,
                         std::span<const int32_t> sought) {
  matches_.clear();
  index.find(text, sought, matches_);
  for (const TokenIndex::Match& match : matches_) places_.push_back({text, match});
}

// Each token is the one that most of the places go on with that have gone on with the draft so far; of equals
// the first one, and a request's own places come first.
void SuffixDrafter::vote(DraftTask& task) {
  const auto all = static_cast<double>(places_.size());
  std::vector<std::pair<int32_t, int>> votes;  // by token
  for (size_t i = 0; std::ssize(task.draft) < task.most; ++i) {
    const auto next = [&](const Place& p) { return token_at(p.text, static_cast<size_t>(p.match.end) + i); };
    votes.clear();
    for (const Place& p : places_) {
      const int32_t token = next(p);
      if (token == kEnd) continue;
      const auto known =
          std::find_if(votes.begin(), votes.end(), [&](const auto& v) { return v.first == token; });
      known == votes.end() ? static_cast<void>(votes.emplace_back(token, 1))
                           : static_cast<void>(++known->second);
    }
    const auto best = std::max_element(votes.begin(), votes.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == votes.end() || best->second < kLeastShare * all) return;
    if (i == 0 && best->second < kClearMajority * all) task.grade = 0;
    task.draft.push_back(best->first);
    std::erase_if(places_, [&](const Place& p) { return next(p) != best->first; });
  }
}

Status SuffixDrafter::draft(std::span<DraftTask> tasks) {
  for (DraftTask& task : tasks) {
    TokenIndex& index = indexes_[task.request];
    index.grow(task.tokens);
    places_.clear();
    find(task.tokens, index, task.tokens);
    if (shares_ && task.salt.empty()) {
      find(latest_.tokens, latest_.index, task.tokens);
      find(older_.tokens, older_.index, task.tokens);
    }
    int longest = 0;
    for (const Place& p : places_) longest = std::max(longest, p.match.length);
    const int least = std::min(longest, kLong);
    std::erase_if(places_, [&](const Place& p) { return p.match.length < least; });
    task.grade = grade_of(longest);
    vote(task);
  }
  return {};
}

void SuffixDrafter::end(uint64_t request, std::span<const int32_t> tokens, int prompt_tokens) {
  indexes_.erase(request);
  if (!shares_) return;
  auto answer = tokens.subspan(std::min(tokens.size(), static_cast<size_t>(prompt_tokens)));
  answer = answer.last(std::min(answer.size(), kMostTokens - 1));
  if (answer.empty()) return;
  if (latest_.tokens.size() + answer.size() + 1 > kMostTokens) older_ = std::exchange(latest_, {});
  latest_.tokens.insert(latest_.tokens.end(), answer.begin(), answer.end());
  latest_.tokens.push_back(kEnd);
  latest_.index.grow(latest_.tokens);
}

}  // namespace moesaic
