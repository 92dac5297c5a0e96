// Several patterns at once, deterministic: one place at a time, whatever they are.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "grammar/pattern.h"

namespace moesaic::grammar {

struct CharDfa {
  struct State {
    std::vector<std::pair<CharSet, int>> steps;  // disjoint sets
    uint64_t taken = 0;                          // which patterns take what leads here, a bit each
  };
  std::vector<State> states;  // the first one is the start
};

inline constexpr size_t kMaxPatterns = 64, kMaxDfaStates = 10'000, kMaxAmbiguousStates = 64;

// Fails where that takes too many states or too much work.
Result<CharDfa> determinized(const std::vector<const CharAutomaton*>& patterns, Work& work);

// The way in which characters are written: inside a JSON string, or as they are.
enum class Spelling { kJsonString, kText };

// Makes characters. Sets beyond plain ASCII are rules, each made once.
class StringMaker {
 public:
  explicit StringMaker(Automaton& automaton, Spelling spelling = Spelling::kJsonString)
      : a_(automaton), spelling_(spelling) {}

  // Behind the opening quote, where there is one; `ends` gives what may follow what these patterns take,
  // nothing mostly.
  using Ends = std::function<std::vector<StateId>(uint64_t taken)>;
  StateId deterministic(const CharDfa& dfa, uint32_t min, uint32_t max, const Ends& ends);
  // Without anchors inside. Of more states than kMaxAmbiguousStates it takes too long.
  StateId ambiguous(const CharAutomaton& pattern, uint32_t min, uint32_t max, StateId next);
  StateId runs(const std::vector<CharRun>& runs, StateId next);
  StateId character(const CharSet& set, StateId next);

 private:
  class Characters;
  StateId rule(const CharSet& set);
  StateId spelled(const CharSet& set, StateId next);

  Automaton& a_;
  Spelling spelling_;
  std::map<CharSet, StateId> rules_;
};

}  // namespace moesaic::grammar
