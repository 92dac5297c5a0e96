// Answers that a regular expression matches.
#pragma once

#include <string>
#include <string_view>

#include "grammar/automaton.h"
#include "grammar/work.h"
#include "moesaic/status.h"

namespace moesaic::grammar {

// A rule for the texts that the expression matches as a whole, as vLLM and outlines have it. The syntax is
// pattern.h's. Fails with one line that names what is not supported and where. name stands in it.
Result<StateId> regex_rule(Automaton& automaton, std::string_view regex, const std::string& name, Work& work);

}  // namespace moesaic::grammar
