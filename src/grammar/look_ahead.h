// Look-ahead inside a pattern: the rest of the text must also be, or not be, of another automaton.
#pragma once

#include <functional>

#include "grammar/char_dfa.h"
#include "grammar/pattern.h"

namespace moesaic::grammar {

// Adds states that take the texts which `from` takes, as far as `rest` takes them too (must), or does not
// take them. Returns the first one. add: adds a state to the automaton and returns its number. stopped: there
// are too many states, or the work is spent.
int looking_ahead(CharAutomaton& automaton, int from, const CharDfa& rest, bool must, Work& work,
                  const std::function<int(CharAutomaton::State)>& add, const std::function<bool()>& stopped);

}  // namespace moesaic::grammar
