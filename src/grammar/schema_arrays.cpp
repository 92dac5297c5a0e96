// Arrays: items one by one, what they contain, lists without duplicates.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_values.h"

namespace moesaic::grammar {
namespace {

constexpr size_t kMaxExactUnique = 8, kMaxOrderedUnique = 500;

// Older drafts spell prefixItems and items as items and additionalItems.
const Json* first_items(const Json& schema) {
  if (has(schema, "prefixItems")) return &schema["prefixItems"];
  return has(schema, "items") && schema["items"].is_array() ? &schema["items"] : nullptr;
}
const Json* other_items(const Json& schema) {
  const bool old = has(schema, "items") && schema["items"].is_array();
  const char* key = old ? "additionalItems" : "items";
  return has(schema, key) ? &schema[key] : nullptr;
}

}  // namespace

Schemas SchemaCompiler::item(const Facts& facts, size_t at) {
  Schemas all;
  const auto says = [&](const Json* part) {
    const Json* first = first_items(*part);
    return (first != nullptr && at < first->size()) || other_items(*part) != nullptr;
  };
  for (const Json* schema : facts.arrays) {
    context_.work().add(1);
    context_.add_keywords(*schema);
    if (context_.work().spent()) return all;
    if (!has(*schema, "unevaluatedItems")) continue;
    const auto& reach = context_.reach(schema);
    const bool evaluated = std::any_of(facts.arrays.begin(), facts.arrays.end(), [&](const Json* part) {
      context_.work().add(1);
      return reach.contains(part) && says(part);
    });
    if (!evaluated) all.push_back(&(*schema)["unevaluatedItems"]);
  }
  for (const Json* schema : facts.arrays) {
    const Json* first = first_items(*schema);
    const Json* own = first != nullptr && at < first->size() ? &(*first)[at] : other_items(*schema);
    if (own != nullptr) all.push_back(own);
  }
  return all;
}

// Items that must be contained stand at the first places where they can.
Status SchemaCompiler::add_contained(const Facts& facts, Counts& counts, std::vector<Schemas>& first,
                                     Schemas& rest) {
  size_t at = 0;
  for (const Json* schema : facts.contains) {
    const Json& wanted = (*schema)["contains"];
    const Json min = schema->value("minContains", Json(1));
    if (!min.is_number_integer() || min < Json(0) || min > Json(1000))
      return invalid("minContains must be a number up to 1,000");
    for (size_t left = min.get<size_t>(); left > 0; ++at) {
      if (at >= first.size()) first.push_back(rest);
      context_.work().add(first[at].size() + 1);
      if (context_.work().spent()) return invalid("{}", kTooMuchWork);
      Schemas both = first[at];
      both.push_back(&wanted);
      if (first[at] != rest && !cases_.plausible(both, 3)) continue;
      first[at] = both, --left;
    }
    counts.min = std::max(counts.min, static_cast<uint32_t>(at));
    if (!has(*schema, "maxContains")) continue;
    const Json* others = context_.keep(Json{{"not", context_.link(&wanted)}});
    for (Schemas& item : first) {
      context_.work().add(item.size() + 1);
      if (std::find(item.begin(), item.end(), &wanted) == item.end()) item.push_back(others);
    }
    if (context_.work().spent()) return invalid("{}", kTooMuchWork);
    rest.push_back(others);
    if (Json(min) > (*schema)["maxContains"]) counts.max = 0, counts.min = 1;
  }
  return {};
}

Result<StateId> SchemaCompiler::array(const Facts& facts) {
  Counts counts = facts.items;
  const bool any = facts.arrays.empty() && facts.contains.empty() && facts.unique.empty() && !counts.limits();
  if (any) return rules_.any_array();
  size_t alone = 0;
  for (const Json* schema : facts.arrays) {
    const Json* first = first_items(*schema);
    if (first != nullptr) alone = std::max(alone, first->size());
  }
  std::vector<Schemas> first;
  for (size_t i = 0; i < std::min<size_t>(alone, counts.max) && !context_.work().spent(); ++i)
    first.push_back(item(facts, i));
  Schemas rest = item(facts, alone);
  if (context_.work().spent()) return invalid("{}", kTooMuchWork);
  RETURN_IF_ERROR(add_contained(facts, counts, first, rest));
  if (counts.empty()) return a_.split({});
  if (!facts.unique.empty() && counts.max > 1) {
    std::vector<const Json*> values;
    if (first.empty()) {
      ASSIGN_OR_RETURN(values, few_values(rest));
    }
    if (!values.empty()) return unique_list(values, counts);
    context_.note("uniqueItems is enforced for lists of few values only");
  }
  // The items that stand alone: the first one, with no comma before it, and those with their own schema.
  if (first.empty() && counts.max > 0) first.push_back(rest);
  first.resize(std::min<size_t>(first.size(), counts.max));
  const Counts others = counts.without(static_cast<uint32_t>(first.size()));
  const StateId end = rules_.close(']');
  StateId next =
      a_.repeat(rules_.comma(a_.call(inner(rest, "items"), a_.end_of_rule())), others.min, others.max, end);
  for (size_t i = first.size(); i-- > 0;) {
    const bool own = i < alone;
    const StateId rule = inner(first[i], own ? fmt::format("prefixItems[{}]", i) : "items");
    const StateId here = a_.call(rule, next), way = i == 0 ? rules_.space(here) : rules_.comma(here);
    next = i >= counts.min ? a_.split({end, way}) : way;
  }
  return a_.byte('[', first.empty() ? end : next);
}

// Each once; none where there may be other values.
Result<std::vector<const Json*>> SchemaCompiler::few_values(const Schemas& item) {
  std::vector<const Json*> values;
  ASSIGN_OR_RETURN(const auto cases, cases_.of(item));
  for (const Schemas& own : cases) {
    ASSIGN_OR_RETURN(const Facts facts, facts_of(own, context_));
    const bool few = facts.types != 0 && (facts.types & ~static_cast<unsigned>(kBoolean | kNull)) == 0;
    if (facts.enums.empty() && !few) return std::vector<const Json*>();
    if (facts.enums.empty()) {
      values.push_back(context_.keep(nullptr));
      values.push_back(context_.keep(true)), values.push_back(context_.keep(false));
      continue;
    }
    for (const Json& value : *facts.enums[0]) values.push_back(&value);
  }
  if (values.size() > kMaxOrderedUnique) return std::vector<const Json*>();
  std::vector<const Json*> taken;
  for (const Json* value : values) {
    context_.work().add(taken.size() * context_.steps_of(*value));
    if (context_.work().spent()) return invalid("{}", kTooMuchWork);
    const bool known = std::any_of(taken.begin(), taken.end(), [&](const Json* t) { return *t == *value; });
    const bool holds = std::all_of(item.begin(), item.end(), [&](const Json* s) {
      return satisfies(*value, *s, context_) == Truth::kYes;
    });
    if (!known && holds) taken.push_back(value);
  }
  return taken;
}

// Behind the items in `used`: what else there may be.
StateId SchemaCompiler::unique_from(const std::vector<StateId>& values, uint32_t used, Counts counts,
                                    std::map<uint32_t, StateId>& made) {
  const auto [entry, fresh] = made.try_emplace(used, -1);
  if (!fresh) return entry->second;
  std::vector<StateId> items, ways;
  const auto count = static_cast<uint32_t>(std::popcount(used));
  if (count < counts.max)
    for (size_t i = 0; i < values.size(); ++i)
      if ((used >> i & 1) == 0)
        items.push_back(a_.call(values[i], unique_from(values, used | 1u << i, counts, made)));
  if (count >= counts.min) ways.push_back(rules_.close(']'));
  if (!items.empty())
    ways.push_back(used == 0 ? rules_.space(a_.split(items)) : rules_.comma(a_.split(items)));
  return made[used] = a_.split(ways);
}

// Few values in any order, more of them in the schema's.
StateId SchemaCompiler::unique_list(const std::vector<const Json*>& values, Counts counts) {
  if (counts.min > values.size()) return a_.split({});
  std::vector<StateId> rules;
  for (const Json* value : values) rules.push_back(rules_.value(*value, a_.end_of_rule()));
  std::map<uint32_t, StateId> made;
  if (values.size() <= kMaxExactUnique) return a_.byte('[', unique_from(rules, 0, counts, made));
  const auto most = static_cast<uint32_t>(std::min<size_t>(values.size(), counts.max));
  const uint32_t cap =
      counts.max >= values.size() ? std::max(counts.min, 1u) : most;  // from it on nothing is counted
  const StateId end = rules_.close(']');
  // By the number of items so far: what may follow, of the values not yet passed.
  std::vector<StateId> behind(cap + 1), items(cap + 1, -1);
  for (uint32_t n = 0; n <= cap; ++n) behind[n] = n >= counts.min ? end : a_.split({});
  for (size_t i = rules.size(); i-- > 0;) {
    const std::vector<StateId> after = behind;
    for (uint32_t n = 0; n <= cap; ++n) {
      if (n >= counts.max) continue;
      const StateId here = a_.call(rules[i], after[std::min(n + 1, cap)]);
      items[n] = items[n] < 0 ? here : a_.split({here, items[n]});
      const StateId more = n == 0 ? rules_.space(items[n]) : rules_.comma(items[n]);
      behind[n] = n >= counts.min ? a_.split({end, more}) : more;
    }
  }
  return a_.byte('[', behind[0]);
}

}  // namespace moesaic::grammar
