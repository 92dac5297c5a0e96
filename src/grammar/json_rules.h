// The parts that every JSON grammar shares: white space, strings, values of any kind.
//
// White space is what people and json.dumps write, and never endless: nothing or one space behind a colon;
// nothing, one space or a newline with up to 32 spaces inside brackets and behind commas.
#pragma once

#include "grammar/automaton.h"
#include "text/limited_json.h"

namespace moesaic::grammar {

class JsonRules {
 public:
  explicit JsonRules(Automaton& automaton) : a_(automaton) {}

  // States, for what follows.
  StateId space(StateId next);  // inside brackets and behind commas
  StateId comma(StateId next) { return a_.byte(',', space(next)); }
  StateId colon(StateId next) { return a_.byte(':', a_.split({next, a_.byte(' ', next)})); }
  StateId close(char bracket) { return space(a_.byte(static_cast<uint8_t>(bracket), a_.end_of_rule())); }
  // Exactly this value; members in its order.
  StateId value(const text::OrderedJson& value, StateId next);
  StateId quoted(const std::string& text, StateId next) {
    return a_.literal(text::OrderedJson(text).dump(), next);
  }

  // Rules, each made once.
  StateId any_value();
  StateId any_string();
  StateId any_number();
  StateId any_integer();
  StateId any_array();
  StateId any_object();
  StateId string_tail();  // any string from behind its opening quote
  StateId character();    // any one inside a string

 private:
  template <typename Make>
  StateId once(StateId& rule, const Make& make) {
    if (rule < 0) rule = make();
    return rule;
  }

  Automaton& a_;
  StateId space_ = -1, value_ = -1, string_ = -1, number_ = -1, integer_ = -1, array_ = -1, object_ = -1;
  StateId string_tail_ = -1, character_ = -1;
};

}  // namespace moesaic::grammar
