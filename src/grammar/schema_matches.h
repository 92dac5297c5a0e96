// For tests: does a schema's grammar take a text, byte by byte?
#pragma once

#include <string>

#include "grammar/compiled_grammar.h"
#include "grammar/machine.h"

namespace moesaic::grammar {

inline bool matches(const AnswerGrammar& grammar, const std::string& text) {
  const CompiledGrammar& g = *grammar.compiled();
  return accepts(g.automaton, g.rule, text + static_cast<char>(kEnd));
}

}  // namespace moesaic::grammar
