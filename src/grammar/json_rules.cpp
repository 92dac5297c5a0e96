#include "grammar/json_rules.h"

#include "grammar/characters.h"
#include "grammar/numbers.h"

namespace moesaic::grammar {
namespace {

constexpr int kMaxIndent = 32;

}  // namespace

StateId JsonRules::space(StateId next) {
  const StateId rule = once(space_, [&] {
    StateId indent = a_.end_of_rule();
    for (int i = 0; i < kMaxIndent; ++i) indent = a_.split({a_.end_of_rule(), a_.byte(' ', indent)});
    return a_.bytes({{'\n', '\n', indent}, {' ', ' ', a_.end_of_rule()}});
  });
  return a_.split({next, a_.call(rule, next)});
}

StateId JsonRules::value(const text::OrderedJson& value, StateId next) {
  if (!value.is_structured()) return a_.literal(text::compact_json(value), next);
  const bool object = value.is_object();
  next = a_.byte(object ? '}' : ']', next);
  if (value.empty()) return a_.byte(object ? '{' : '[', next);
  next = space(next);
  for (auto member = value.rbegin(); member != value.rend(); ++member) {
    next = this->value(*member, next);
    if (object) next = quoted(member.key(), colon(next));
    if (std::next(member) != value.rend()) next = comma(next);
  }
  return a_.byte(object ? '{' : '[', space(next));
}

StateId JsonRules::character() {
  return once(character_, [&] { return any_string_character(a_, a_.end_of_rule()); });
}

StateId JsonRules::string_tail() {
  return once(string_tail_, [&] {
    const StateId loop = a_.forward();
    a_.define(loop, {a_.byte('"', a_.end_of_rule()), any_string_character(a_, loop)});
    return loop;
  });
}

StateId JsonRules::any_string() {
  return once(string_, [&] { return a_.byte('"', string_tail()); });
}

StateId JsonRules::any_number() {
  return once(number_, [&] { return numbers(a_, {}, a_.end_of_rule()); });
}

StateId JsonRules::any_integer() {
  return once(integer_, [&] { return integers(a_, {}, a_.end_of_rule()); });
}

StateId JsonRules::any_array() {
  return once(array_, [&] {
    const StateId more = a_.forward(), end = close(']');
    const StateId element = a_.call(any_value(), more);
    a_.define(more, {end, comma(element)});
    return a_.byte('[', a_.split({end, space(element)}));
  });
}

StateId JsonRules::any_object() {
  return once(object_, [&] {
    const StateId more = a_.forward(), end = close('}');
    const StateId member = a_.byte('"', a_.call(string_tail(), colon(a_.call(any_value(), more))));
    a_.define(more, {end, comma(member)});
    return a_.byte('{', a_.split({end, space(member)}));
  });
}

StateId JsonRules::any_value() {
  if (value_ >= 0) return value_;
  value_ = a_.forward();
  a_.define(value_,
            {any_object(), any_array(), any_string(), any_number(), a_.literal("true", a_.end_of_rule()),
             a_.literal("false", a_.end_of_rule()), a_.literal("null", a_.end_of_rule())});
  return value_;
}

}  // namespace moesaic::grammar
