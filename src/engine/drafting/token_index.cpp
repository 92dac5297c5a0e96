#include "drafting/token_index.h"

#include <algorithm>

namespace moesaic {

size_t TokenIndex::slot_of(std::span<const int32_t> last) const {
  uint64_t hash = 0;
  for (const int32_t t : last.last(kShortest)) {
    hash = (hash ^ static_cast<uint32_t>(t)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return static_cast<size_t>(hash) & (latest_.size() - 1);
}

void TokenIndex::enter(std::span<const int32_t> tokens, int end) {
  int32_t& latest = latest_[slot_of(tokens.first(static_cast<size_t>(end)))];
  before_[static_cast<size_t>(end)] = latest;
  latest = end;
}

void TokenIndex::enlarge(std::span<const int32_t> tokens) {
  size_t slots = std::max<size_t>(64, latest_.size());
  while (slots < 2 * tokens.size()) slots *= 2;
  latest_.assign(slots, -1);
  for (int end = kShortest; end < std::ssize(before_); ++end) enter(tokens, end);
}

void TokenIndex::grow(std::span<const int32_t> tokens) {
  if (latest_.size() < tokens.size()) enlarge(tokens);
  for (auto end = static_cast<int>(before_.size()); end < std::ssize(tokens); ++end) {
    before_.push_back(-1);
    if (end >= kShortest) enter(tokens, end);
  }
}

void TokenIndex::find(std::span<const int32_t> tokens, std::span<const int32_t> sought,
                      std::vector<Match>& out) const {
  if (latest_.empty() || std::ssize(sought) < kShortest) return;
  int left = kMostPlaces;
  for (int32_t end = latest_[slot_of(sought)]; end >= 0 && left > 0;
       end = before_[static_cast<size_t>(end)], --left) {
    const int most = std::min({kLongest, static_cast<int>(end), static_cast<int>(sought.size())});
    int length = 0;
    while (length < most && tokens[static_cast<size_t>(end - 1 - length)] ==
                                sought[sought.size() - 1 - static_cast<size_t>(length)])
      ++length;
    if (length >= kShortest) out.push_back({.end = end, .length = length});
  }
}

TokenIndex::Match longest(std::span<const TokenIndex::Match> matches) {
  TokenIndex::Match best;
  for (const TokenIndex::Match& m : matches) {
    if (m.length > best.length) best = m;
  }
  return best;
}

int grade_of(int length) { return length < 4 ? 0 : length < 8 ? 1 : 2; }

}  // namespace moesaic
