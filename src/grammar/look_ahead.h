// Look-ahead inside a pattern: another automaton must also take the rest of the text, or must not.
#pragma once

#include <functional>

#include "grammar/char_dfa.h"
#include "grammar/pattern.h"

namespace moesaic::grammar {

// Adds states for the texts that state `from` takes and `rest` takes as well (must), or does not take (else).
// Returns the first one. add: adds a state to the automaton and returns its number. stopped: there
// are too many states, or the work is spent.
int looking_ahead(CharAutomaton& automaton, int from, const CharDfa& rest, bool must, Work& work,
                  const std::function<int(CharAutomaton::State)>& add, const std::function<bool()>& stopped);

}  // namespace moesaic::grammar
