// JSON Schema's string keywords: pattern, format, minLength and maxLength. Patterns are the part of ECMA
// 262's regular expressions that JSON Schema recommends: literals, classes, groups, alternation, quantifiers,
// and ^ and $ around an alternative. \d, \w and \s mean their ASCII characters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/characters.h"
#include "moesaic/status.h"

namespace moesaic::grammar {

// An automaton over characters.
struct CharAutomaton {
  struct Step {
    CharSet set;
    int next;
  };
  struct State {
    std::vector<Step> steps;
    std::vector<int> skips;  // without a character
  };
  std::vector<State> states;  // state 0 is the only one to end in
  int start = 0;
};

// Fails with a line that names what is not supported and where in the pattern.
Result<CharAutomaton> parse_pattern(std::string_view pattern);

// The pattern of a format's strings; empty where there is none.
std::string_view pattern_of_format(std::string_view format);

// The characters inside a JSON string, behind the opening quote, of the strings of min to max characters that
// the pattern takes; `next` is where the closing quote would stand.
StateId patterned_string(Automaton& automaton, const CharAutomaton& pattern, uint32_t min, uint32_t max,
                         StateId next);

}  // namespace moesaic::grammar
