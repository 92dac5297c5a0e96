#include "grammar/regex.h"

#include "base/error.h"
#include "grammar/char_dfa.h"
#include "grammar/pattern.h"
#include "text/utf8.h"

namespace moesaic::grammar {
namespace {

Result<StateId> rule_of(Automaton& a, std::string_view regex, Work& work) {
  if (utf8_valid_prefix(regex) != regex.size()) return invalid("it is not UTF-8");
  ASSIGN_OR_RETURN(const Pattern pattern, parse_pattern(regex, work, Extent::kWhole));
  StringMaker texts(a, Spelling::kText);
  if (pattern.runs) return texts.runs(*pattern.runs, a.end_of_rule());
  const auto dfa = determinized({&pattern.automaton}, work);
  if (dfa.ok())
    return texts.deterministic(dfa.value(), 0, kUnlimited, [&](uint64_t taken) {
      return taken == 1 ? std::vector<StateId>{a.end_of_rule()} : std::vector<StateId>();
    });
  const bool small = !pattern.anchors_inside && pattern.automaton.states.size() <= kMaxAmbiguousStates;
  if (!small || work.spent()) return dfa.status();
  return texts.ambiguous(pattern.automaton, 0, kUnlimited, a.end_of_rule());
}

}  // namespace

Result<StateId> regex_rule(Automaton& automaton, std::string_view regex, const std::string& name,
                           Work& work) {
  Result<StateId> rule = rule_of(automaton, regex, work);
  if (!rule.ok()) return invalid("{}: {}", name, rule.status().message());
  return rule;
}

}  // namespace moesaic::grammar
