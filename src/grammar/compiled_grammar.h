// The result of moesaic/answer_grammar.h: one automaton for all that the model writes, harmony's headers
// included.
#pragma once

#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "moesaic/answer_grammar.h"

namespace moesaic::grammar {

struct CompiledGrammar {
  Automaton automaton;
  StateId rule = 0;
  bool chat = false, must_call = false;  // as in AnswerFormat
  std::vector<std::string> notes;
  std::string key;  // equal for equal formats
};

}  // namespace moesaic::grammar
