// JSON schemas as automata. What is supported, and how the freedom that a schema leaves is narrowed (order of
// properties, white space, digits): docs/user/structured-output.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/json_rules.h"
#include "grammar/work.h"
#include "moesaic/status.h"

namespace moesaic::grammar {

// A rule for the values that the schema takes; notes get a line for each thing in it that is not enforced.
// Fails with one line, with the place in the schema, on what is not supported or too large. name stands in
// it.
Result<StateId> schema_rule(Automaton& automaton, JsonRules& rules, std::string_view schema,
                            const std::string& name, std::vector<std::string>& notes, Work& work);

}  // namespace moesaic::grammar
