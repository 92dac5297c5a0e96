// Unicode characters as bytes, and as a JSON string spells them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"

namespace moesaic::grammar {

struct CharRange {
  uint32_t low, high;  // code points, both included
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const CharRange&, const CharRange&) = default;
};
inline constexpr uint32_t kLastChar = 0x10FFFF;

// Sorted, disjoint, without surrogates.
using CharSet = std::vector<CharRange>;
CharSet normalized(CharSet ranges);
CharSet complement(const CharSet& set);

// The code points of valid UTF-8, and the way back.
std::u32string code_points(std::string_view text);
std::string utf8_of(std::u32string_view points);

// One character of the set in UTF-8.
StateId utf8_character(Automaton& automaton, const CharSet& set, StateId next);
// One character of the set, inside a JSON string in its usual spelling: quote, backslash and control
// characters as escapes, all else as UTF-8.
StateId string_character(Automaton& automaton, const CharSet& set, StateId next);
// Any one character inside a JSON string, in any spelling.
StateId any_string_character(Automaton& automaton, StateId next);

}  // namespace moesaic::grammar
