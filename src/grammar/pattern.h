// JSON Schema's patterns and formats. Patterns are ECMA 262's regular expressions, but for backreferences,
// \b, \p, look-behind, and look-ahead in a repetition without end. \d, \w and \s mean their ASCII characters.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/characters.h"
#include "grammar/work.h"
#include "moesaic/status.h"

namespace moesaic::grammar {

// An automaton over characters.
struct CharAutomaton {
  enum class Where { kAnywhere, kAtBegin, kAtEnd };
  struct Step {
    int set, next;
  };
  struct State {
    std::vector<Step> steps;
    std::vector<int> skips;          // without a character
    Where where = Where::kAnywhere;  // where in the string skips are taken
  };
  std::vector<State> states;  // state 0 is the only one to end in
  std::vector<CharSet> sets;  // in ascending order
  int start = 0;
};

// min to max characters of a set.
struct CharRun {
  CharSet set;
  uint32_t min = 0, max = 0;
};

struct Pattern {
  CharAutomaton automaton;
  // Look-ahead: automata that must, or must not, take the string too.
  std::vector<CharAutomaton> with, without;
  bool anchors_inside = false;  // states that are not kAnywhere
  // The same as runs, where after each character only one of them can go on.
  std::optional<std::vector<CharRun>> runs;
};

// The strings that a pattern takes: those in which it finds something, or those that it matches as a whole.
enum class Extent { kFind, kWhole };
inline constexpr size_t kMaxPatternBytes = 64 << 10;
// Fails with a line that names what is not supported and where in the pattern, and where that takes too many
// states or too much work.
Result<Pattern> parse_pattern(std::string_view pattern, Work& work, Extent extent = Extent::kFind);
// True for strings in which the pattern finds something.
bool takes(const CharAutomaton& automaton, const std::u32string& text, Work& work);
bool takes(const Pattern& pattern, const std::u32string& text, Work& work);
// Takes exactly these.
CharAutomaton automaton_of(const std::vector<std::string>& texts);

// The pattern of a format's strings; empty where there is none.
std::string_view pattern_of_format(std::string_view format);

}  // namespace moesaic::grammar
