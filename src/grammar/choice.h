// Answers that are one of some texts.
#pragma once

#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "moesaic/status.h"

namespace moesaic::grammar {

inline constexpr size_t kMaxChoices = 10'000, kMaxChoiceBytes = 2'000, kMaxChoicesBytes = 150'000;

// A rule for exactly these texts, as a tree of their bytes. There is at least one.
StateId any_of_texts(Automaton& automaton, std::vector<std::string> texts);

// The same within limits. Fails where there are none, where one is empty or not UTF-8, and beyond the
// limits: of their number, of the bytes of one and of all. name stands in the error.
Result<StateId> choice_rule(Automaton& automaton, std::vector<std::string> texts, const std::string& name);

}  // namespace moesaic::grammar
