// For tests: the arguments that a request's grammar takes.
#pragma once

#include <string>

#include "grammar/compiled_grammar.h"
#include "grammar/machine.h"
#include "openai/answer.h"

namespace moesaic::openai {

// Does an answer that calls the function with these arguments follow the form that the request asks for?
inline bool takes_call(const PreparedRequest& prepared, const std::string& function,
                       const std::string& arguments) {
  const std::string special(1, static_cast<char>(grammar::kSpecial));
  const auto& compiled = prepared.requests.at(0).grammar.compiled();
  return compiled != nullptr &&
         grammar::accepts(compiled->automaton, compiled->rule,
                          " to=functions." + function + special + "<|channel|>commentary" + special +
                              "<|message|>" + arguments + special + "<|call|>");
}

}  // namespace moesaic::openai
