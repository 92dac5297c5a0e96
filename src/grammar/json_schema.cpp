#include "grammar/json_schema.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "grammar/choice.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_values.h"

namespace moesaic::grammar {

Status SchemaCompiler::in_place(const Status& status) const {
  return invalid("{}: {}{}{}", name_, path_, path_.empty() ? "" : ": ", status.message());
}

Result<StateId> SchemaCompiler::compile() {
  const StateId rule = inner({&context_.document().root()}, "");
  // Not by recursion: references may lead from schema to schema thousands deep.
  while (!open_.empty()) {
    const Open next = std::move(open_.back());
    open_.pop_back();
    path_ = next.path;
    const auto made = this->made(next.schemas);
    if (!made.ok()) return in_place(made.status());
    a_.define(next.forward, {made.value()});
    if (a_.full()) return in_place(invalid("the schema needs over {}", a_.limit()));
    if (context_.work().spent()) return in_place(invalid("{}", kTooMuchWork));
  }
  return rule;
}

StateId SchemaCompiler::inner(const Schemas& schemas, const std::string& part) {
  Schemas key;
  for (const Json* schema : schemas) key.push_back(context_.same(schema));
  const bool any = std::all_of(key.begin(), key.end(),
                               [](const Json* s) { return *s == true || (s->is_object() && s->empty()); });
  if (any) return rules_.any_value();
  const auto [entry, fresh] = rules_by_schemas_.try_emplace(key, -1);
  if (fresh) {
    const std::string path = path_.empty() || part.empty() ? path_ + part : path_ + "." + part;
    open_.push_back({entry->second = a_.forward(), std::move(key), path});
  }
  return entry->second;
}

Result<StateId> SchemaCompiler::made(const Schemas& schemas) {
  ASSIGN_OR_RETURN(const auto cases, cases_.of(schemas));
  std::vector<StateId> ways;
  for (const Schemas& own : cases) {
    const auto [entry, fresh] = rules_by_case_.try_emplace(own, -1);
    if (fresh) {
      const StateId forward = entry->second = a_.forward();
      ASSIGN_OR_RETURN(const StateId rule, of_case(own));
      a_.define(forward, {rule});
    }
    ways.push_back(entry->second);
    if (a_.full() || context_.work().spent()) break;
  }
  return a_.split(ways);
}

Result<StateId> SchemaCompiler::of_case(const Schemas& own) {
  if (own.empty()) return rules_.any_value();
  ASSIGN_OR_RETURN(Facts facts, facts_of(own, context_));
  if (!facts.enums.empty()) return values(facts, own);
  exclude(facts);
  return of_types(facts);
}

Result<StateId> SchemaCompiler::of_types(Facts& facts) {
  const auto differs = [&](const Json& value) {
    return std::any_of(facts.differs.begin(), facts.differs.end(),
                       [&](const Json* d) { return *d == value; });
  };
  if (facts.types == kAllTypes && facts.differs.empty() && !facts.length.limits() && facts.patterns.empty() &&
      facts.not_patterns.empty() && facts.objects.empty() && facts.arrays.empty() && !facts.items.limits() &&
      !facts.members.limits() && facts.required.empty() && facts.absent.empty() && facts.factors.empty() &&
      !facts.range.low && !facts.range.high && facts.names.empty() && facts.contains.empty() &&
      facts.unique.empty())
    return rules_.any_value();
  std::vector<StateId> rules;
  if ((facts.types & kObject) != 0) {
    ASSIGN_OR_RETURN(rules.emplace_back(), object(facts));
  }
  if ((facts.types & kArray) != 0) {
    ASSIGN_OR_RETURN(rules.emplace_back(), array(facts));
  }
  if ((facts.types & kString) != 0) {
    ASSIGN_OR_RETURN(rules.emplace_back(), string(facts));
  }
  if ((facts.types & kNumber) != 0) {
    ASSIGN_OR_RETURN(rules.emplace_back(), number(facts));
  }
  for (const Json& value : {Json(true), Json(false), Json(nullptr)}) {
    const bool taken = (facts.types & (value.is_null() ? kNull : kBoolean)) != 0 && !differs(value);
    if (taken) rules.push_back(a_.literal(value.dump(), a_.end_of_rule()));
  }
  return a_.split(rules);
}

// Leaves out excluded values, with all that cannot be told apart from them.
void SchemaCompiler::exclude(Facts& facts) const {
  for (const Json* value : facts.differs) {
    if (!value->is_structured()) continue;
    Counts& counts = value->is_object() ? facts.members : facts.items;
    if (value->empty())
      counts.min = std::max(counts.min, 1u);
    else
      facts.types &= ~static_cast<unsigned>(value->is_object() ? kObject : kArray);
  }
}

Result<StateId> SchemaCompiler::values(const Facts& facts, const Schemas& own) {
  const Json& all = **std::min_element(facts.enums.begin(), facts.enums.end(),
                                       [](auto* a, auto* b) { return a->size() < b->size(); });
  std::vector<const Json*> taken;
  for (const Json& value : all) {
    const bool holds = std::all_of(own.begin(), own.end(), [&](const Json* schema) {
      return own_keywords_hold(value, *schema, context_, &all) == Truth::kYes;
    });
    if (holds) taken.push_back(&value);
  }
  return listed(taken);
}

// Texts as a tree, so that many values are no more places than few.
StateId SchemaCompiler::listed(const std::vector<const Json*>& values) {
  std::vector<std::string> texts;
  std::vector<StateId> ways;
  for (const Json* value : values) {
    context_.work().add(context_.steps_of(*value));
    if (context_.work().spent()) break;
    if (value->is_string())
      texts.push_back(value->dump());
    else
      ways.push_back(rules_.value(*value, a_.end_of_rule()));
    if (a_.full()) break;
  }
  if (!texts.empty()) ways.push_back(any_of_texts(a_, std::move(texts)));
  return a_.split(ways);
}

Result<StateId> SchemaCompiler::number(const Facts& facts) {
  NumberRange range = facts.range;
  const bool whole = (facts.types & kFraction) == 0;
  range.fractions = (facts.types & kInteger) == 0;
  for (const Json& value : facts.factors) {
    const auto factor = factor_of(decimal_of(value));
    const auto both = factor ? common(range.factor, *factor) : std::nullopt;
    if (!both)
      return invalid("multipleOf {} is not supported: at most {}, and as many without the point",
                     value.dump(), Factor::kMaxUnits);
    range.factor = *both;
  }
  std::vector<NumberRange> ranges = {range};
  for (const Json* value : facts.differs) {
    if (!value->is_number()) continue;
    const Decimal apart = decimal_of(*value);
    std::vector<NumberRange> cut;
    for (const NumberRange& r : ranges) {
      NumberRange below = r, above = r;
      if (!r.high || compare(apart, r.high->value) <= 0) below.high = Bound{apart, false};
      if (!r.low || compare(apart, r.low->value) >= 0) above.low = Bound{apart, false};
      if (r.low && compare(apart, r.low->value) < 0) below.high = Bound{r.low->value, false};
      if (r.high && compare(apart, r.high->value) > 0) above.low = Bound{r.high->value, false};
      for (const NumberRange& part : {below, above})
        if (!empty(part)) cut.push_back(part);
    }
    ranges = std::move(cut);
    context_.work().add(100 * ranges.size());
    if (context_.work().spent()) return invalid("{}", kTooMuchWork);
  }
  std::vector<StateId> ways;
  for (const NumberRange& r : ranges) {
    const bool free = !r.low && !r.high && r.factor.units == 0 && !r.fractions;
    if (empty(r)) continue;
    if (a_.full()) break;
    if (free)
      ways.push_back(whole ? rules_.any_integer() : rules_.any_number());
    else
      ways.push_back(whole ? integers(a_, r, a_.end_of_rule()) : numbers(a_, r, a_.end_of_rule()));
  }
  return a_.split(ways);
}

Result<StateId> schema_rule(Automaton& a, JsonRules& rules, std::string_view schema, const std::string& name,
                            std::vector<std::string>& notes, Work& work) {
  ASSIGN_OR_RETURN(const auto document, SchemaDocument::parse(schema, name));
  SchemaCompiler compiler(a, rules, *document, name, work);
  ASSIGN_OR_RETURN(const StateId rule, compiler.compile());
  notes.insert(notes.end(), compiler.notes().begin(), compiler.notes().end());
  return rule;
}

}  // namespace moesaic::grammar
