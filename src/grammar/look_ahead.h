// Look-ahead inside a pattern: the rest of the text must also be, or not be, of another automaton.
#pragma once

#include <functional>

#include "grammar/char_dfa.h"
#include "grammar/pattern.h"

namespace moesaic::grammar {

// Makes states that go on as `from` does, for those rests of the text alone that `rest` takes (must), or does
// not take. add: adds a state to the automaton and returns its number. stopped: there are too many.
// Returns the first.
int looking_ahead(CharAutomaton& automaton, int from, const CharDfa& rest, bool must, Work& work,
                  const std::function<int(CharAutomaton::State)>& add, const std::function<bool()>& stopped);

}  // namespace moesaic::grammar
