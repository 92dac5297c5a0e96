// Finds where in a text its latest tokens have stood before. It grows with the text in O(1) a token,
// amortised, and takes 8 to 16 bytes for each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

class TokenIndex {
 public:
  static constexpr int kShortest = 2;     // tokens that a match has at least
  static constexpr int kLongest = 32;     // tokens that are compared
  static constexpr int kMostPlaces = 16;  // a search looks at so many places, the latest ones

  struct Match {
    int end = 0;     // the text goes on with tokens[end]
    int length = 0;  // how many tokens before `end` are the sought ones; 0: there is no match
  };

  // Enters the text's places as far as a token follows them. tokens: the text, of which earlier calls have
  // seen a beginning.
  void grow(std::span<const int32_t> tokens);
  // Appends places in the text that was entered last whose tokens before them are the last ones of `sought`,
  // latest first: at most kMostPlaces, and only those of at least kShortest tokens.
  void find(std::span<const int32_t> tokens, std::span<const int32_t> sought, std::vector<Match>& out) const;

 private:
  size_t slot_of(std::span<const int32_t> last) const;
  void enter(std::span<const int32_t> tokens, int end);
  void enlarge(std::span<const int32_t> tokens);

  std::vector<int32_t> latest_;  // [a power of two] by hash of kShortest tokens: the latest `end`; -1: none
  std::vector<int32_t> before_;  // [ends] the one before it with the same slot; -1: none
};

// Returns the longest match, the latest of equals.
TokenIndex::Match longest(std::span<const TokenIndex::Match> matches);
// Returns a match's grade (DraftTask): drafts of long matches hold for longer.
int grade_of(int length);

}  // namespace moesaic
