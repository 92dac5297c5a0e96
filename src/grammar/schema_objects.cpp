// Objects: properties in their order, others behind them, and how many there are.
#include <algorithm>

#include "base/error.h"
#include "grammar/byte_tree.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_values.h"

namespace moesaic::grammar {
namespace {

bool is_false(const Schemas& schemas) {
  return std::any_of(schemas.begin(), schemas.end(), [](const Json* s) { return *s == false; });
}

// Keys that are none of these names, from the quote on. Inside the tree characters have their usual spelling
// only, so that no escape spells a name.
StateId key_beside(Automaton& a, JsonRules& rules, StringMaker& strings,
                   const std::vector<std::string>& names, StateId next) {
  CharAutomaton tree = automaton_of(names);
  const StateId free = a.call(rules.string_tail(), next), end = a.byte('"', next);
  std::vector<StateId> made(tree.states.size());
  for (size_t i = tree.states.size(); i-- > 1 && !a.full();) {  // a child comes behind its parent
    std::vector<StateId> ways;
    CharSet taken;
    if (tree.states[i].skips.empty()) ways.push_back(end);
    auto& steps = tree.states[i].steps;
    std::ranges::sort(steps, {}, [&](const CharAutomaton::Step& step) { return tree.sets[step.set][0]; });
    for (const auto& [set, child] : steps) {
      taken.push_back(tree.sets[set][0]);
      ways.push_back(string_character(a, tree.sets[set], made[child]));
    }
    ways.push_back(strings.character(complement(taken), free));
    made[i] = a.split(ways);
  }
  return a.byte('"', made[tree.start]);
}

}  // namespace

// The members of an object behind each other, with their number as far as it matters.
class SchemaCompiler::Record {
 public:
  Record(SchemaCompiler& compiler, const std::vector<Property>& properties, Counts counts)
      : a_(compiler.a_),
        rules_(compiler.rules_),
        properties_(properties),
        counts_(counts),
        work_(compiler.context_.work()),
        tree_(compiler.a_) {
    capped_ = counts.max != kUnlimited;
    cap_ = capped_ ? counts.max : counts.min;
  }

  // `others`: makes the key and value of another property, and then what is given.
  template <typename OtherMember>
  StateId build(bool open, const OtherMember& other) {
    end_ = rules_.close('}');
    if (open) make_others(other);
    // By the number of members so far: their keys and what stands behind a member, of the properties not yet
    // passed.
    std::vector<StateId> tree(cap_ + 1, -1), behind(cap_ + 1), before;
    for (uint32_t n = 0; n <= cap_; ++n) behind[n] = behind_of(n, -1, true, open);
    bool may_end = true;
    for (size_t i = properties_.size(); i-- > 0 && !a_.full() && !work_.spent();) {
      const Property& p = properties_[i];
      may_end = may_end && !p.required;
      before = behind;
      const std::string text = text::OrderedJson(p.name).dump().substr(1);
      for (uint32_t n = 0; n <= cap_ && !a_.full(); ++n) {
        work_.add(text.size());
        if (work_.spent()) break;
        if (p.required) tree[n] = -1;
        const bool fits = !capped_ || n < counts_.max;
        if (fits)
          tree[n] = tree_.with(tree[n], text, rules_.colon(a_.call(p.value, before[std::min(n + 1, cap_)])));
        behind[n] = behind_of(n, tree[n], may_end, open && may_end);
      }
    }
    return a_.byte('{', first_);
  }

 private:
  // The end, or a comma and a key; in front of the first member there is no comma.
  StateId behind_of(uint32_t n, StateId tree, bool may_end, bool open) {
    std::vector<StateId> keys, ways;
    if (tree >= 0) keys.push_back(a_.byte('"', tree));
    if (open && other_keys_[n] >= 0) keys.push_back(other_keys_[n]);
    if (may_end && n >= counts_.min) ways.push_back(end_);
    std::vector<StateId> first = ways;
    if (!keys.empty()) {
      const StateId key = a_.split(keys);
      ways.push_back(rules_.comma(key));
      if (n == 0) first.push_back(rules_.space(key));
    }
    if (n == 0) first_ = a_.split(first);
    return a_.split(ways);
  }

  // Other properties: keys that are said twice count once, so that for the minimum they are one at most.
  template <typename OtherMember>
  void make_others(const OtherMember& other) {
    other_keys_.assign(cap_ + 1, -1);
    // Behind `n` members of which `sure` are different for certain.
    std::map<std::pair<uint32_t, bool>, StateId> loops;
    for (uint32_t n = cap_ + 1; n-- > 0;) {
      if (capped_ && n >= counts_.max) continue;
      const uint32_t sure = std::min(n + 1, cap_);
      const bool enough = n + 1 >= counts_.min;
      other_keys_[n] = other(loop(other, sure, enough, loops));
    }
  }
  template <typename OtherMember>
  StateId loop(const OtherMember& other, uint32_t n, bool enough,
               std::map<std::pair<uint32_t, bool>, StateId>& loops) {
    const uint32_t at = capped_ ? n : 0;
    const auto [entry, fresh] = loops.try_emplace({at, enough}, -1);
    if (!fresh) return entry->second;
    const StateId state = a_.forward();
    loops[{at, enough}] = state;
    std::vector<StateId> ways;
    if (enough) ways.push_back(end_);
    const bool more = !capped_ || n < counts_.max;
    if (more) ways.push_back(rules_.comma(other(capped_ ? loop(other, n + 1, enough, loops) : state)));
    a_.define(state, ways);
    return state;
  }

  Automaton& a_;
  JsonRules& rules_;
  const std::vector<Property>& properties_;
  Counts counts_;
  Work& work_;
  ByteTree tree_;
  bool capped_;
  uint32_t cap_;
  StateId end_ = -1, first_ = -1;
  std::vector<StateId> other_keys_;
};

Result<bool> SchemaCompiler::name_allowed(const Facts& facts, const std::string& name) {
  context_.work().add(facts.absent.size());
  if (std::find(facts.absent.begin(), facts.absent.end(), name) != facts.absent.end()) return false;
  for (const Json* names : facts.names) {
    const Truth truth = satisfies(Json(name), *names, context_);
    if (truth == Truth::kUnknown) return invalid("propertyNames of this kind is not supported");
    if (truth == Truth::kNo) return false;
  }
  return true;
}

// In their order; those that propertyNames lists come last.
Result<std::vector<std::string>> SchemaCompiler::names_of(const Facts& facts) {
  std::vector<std::string> names;
  std::set<std::string_view> known;
  const auto add = [&](const std::string& name) {
    context_.work().add(4);
    if (known.contains(name)) return;
    known.insert(names.emplace_back(name));
  };
  size_t most = facts.required.size();
  for (const Json* schema : facts.objects)
    most += has(*schema, "properties") ? (*schema)["properties"].size() : 0;
  std::vector<const Json*> listed;
  for (const Json* schema : facts.names) {
    ASSIGN_OR_RETURN(const auto cases, cases_.of({schema}));
    for (const Schemas& own : cases) {
      ASSIGN_OR_RETURN(const Facts name, facts_of(own, context_));
      if (!name.enums.empty())
        for (const Json& value : *name.enums[0]) listed.push_back(&value);
    }
  }
  names.reserve(most + listed.size());
  for (const Json* schema : facts.objects)
    if (has(*schema, "properties"))
      for (const auto& [name, unused] : *(*schema)["properties"].get_ptr<const Json::object_t*>()) add(name);
  for (const std::string& name : facts.required) add(name);
  for (const Json* value : listed)
    if (value->is_string()) add(value->get_ref<const std::string&>());
  return names;
}

Result<std::vector<SchemaCompiler::Property>> SchemaCompiler::properties(const Facts& facts, bool& impossible,
                                                                         std::vector<std::string>& named) {
  std::vector<Property> properties;
  ASSIGN_OR_RETURN(named, names_of(facts));
  const std::set<std::string_view> required(facts.required.begin(), facts.required.end());
  for (const std::string& name : named) {
    ASSIGN_OR_RETURN(const bool allowed, name_allowed(facts, name));
    ASSIGN_OR_RETURN(const Schemas schemas, schemas_of_property(facts, name, context_));
    if (!allowed || is_false(schemas))
      impossible = impossible || required.contains(name);
    else
      properties.push_back({name, inner(schemas, "properties." + name), required.contains(name)});
    if (context_.work().spent()) return invalid("{}", kTooMuchWork);
  }
  context_.work().add(facts.absent.size() * named.size());
  if (context_.work().spent()) return invalid("{}", kTooMuchWork);
  for (const std::string& name : facts.absent)
    if (std::find(named.begin(), named.end(), name) == named.end()) named.push_back(name);
  return properties;
}

// A member whose name is none of `named`, or -1.
Result<StateId> SchemaCompiler::other_member(const Facts& facts, const std::vector<std::string>& named) {
  std::vector<std::string> patterns;
  for (const Json* schema : facts.objects) {
    if (!has(*schema, "patternProperties") || patterns.size() > kMaxPatterns) continue;
    for (const auto& [pattern, unused] : *(*schema)["patternProperties"].get_ptr<const Json::object_t*>()) {
      if (patterns.size() > kMaxPatterns) break;
      if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) patterns.push_back(pattern);
    }
  }
  for (const std::string& name : named) context_.work().add(2 * name.size());
  const Schemas schemas = schemas_of_others(facts, {}, context_);
  if (context_.work().spent()) return invalid("{}", kTooMuchWork);
  if (patterns.empty() && (closed(facts) || is_false(schemas))) return -1;
  if (patterns.empty() && facts.names.empty()) {
    const StateId value = a_.call(inner(schemas, "additionalProperties"), a_.end_of_rule());
    return key_beside(a_, rules_, strings_, named, rules_.colon(value));
  }
  std::vector<StateId> ways;
  std::vector<Schemas> cases = {{}};
  if (!facts.names.empty()) {
    ASSIGN_OR_RETURN(cases, cases_.of(facts.names));
  }
  for (const Schemas& own : cases) {
    ASSIGN_OR_RETURN(const Facts name, facts_of(own, context_));
    // Listed names are named.
    if (!name.enums.empty() || (name.types & kString) == 0) continue;
    ASSIGN_OR_RETURN(ways.emplace_back(), matching_member(facts, name, named, patterns));
  }
  return ways.empty() ? -1 : a_.split(ways);
}

Result<StateId> SchemaCompiler::matching_member(const Facts& facts, const Facts& name,
                                                const std::vector<std::string>& named,
                                                const std::vector<std::string>& patterns) {
  std::vector<const CharAutomaton*> all;
  const auto add = [&](const std::string& text) -> Status {
    auto pattern = context_.pattern(text);
    if (!pattern.ok())
      return invalid("the pattern of names {}: {}", Json(text).dump(), pattern.status().message());
    if (!pattern.value()->with.empty() || !pattern.value()->without.empty())
      return invalid("look-around in the pattern of names {} is not supported", Json(text).dump());
    all.push_back(&pattern.value()->automaton);
    return {};
  };
  for (const std::string& pattern : patterns) RETURN_IF_ERROR(add(pattern));
  std::vector<std::string> without = named;
  for (const Json* value : name.differs)
    if (value->is_string()) without.push_back(value->get<std::string>());
  for (const std::string& text : without) context_.work().add(20 * text.size());
  if (context_.work().spent()) return invalid("{}", kTooMuchWork);
  const CharAutomaton others = automaton_of(without);
  const size_t first_wanted = all.size();
  RETURN_IF_ERROR(add(""));
  for (const std::string& pattern : name.patterns) RETURN_IF_ERROR(add(pattern));
  const size_t first_unwanted = all.size();
  for (const std::string& pattern : name.not_patterns) RETURN_IF_ERROR(add(pattern));
  all.push_back(&others);
  if (all.size() > kMaxPatterns)
    return invalid("over {} patterns of names at a time are not supported", kMaxPatterns);
  const uint64_t matching = (uint64_t{1} << first_wanted) - 1;
  const uint64_t wanted = (uint64_t{1} << first_unwanted) - (uint64_t{1} << first_wanted);
  const auto dfa = determinized(all, context_.work());
  if (!dfa.ok()) return invalid("patternProperties: {}", dfa.status().message());
  if (name.length.empty()) return a_.split({});
  std::map<uint64_t, std::vector<StateId>> ends;  // by the patterns that a name matches
  const StateId inside =
      strings_.deterministic(dfa.value(), name.length.min, name.length.max, [&](uint64_t taken) {
        if ((taken & ~matching) != wanted) return std::vector<StateId>();
        const auto [entry, fresh] = ends.try_emplace(taken & matching);
        if (!fresh) return entry->second;
        std::vector<std::string> matched;
        for (size_t i = 0; i < patterns.size(); ++i)
          if ((taken >> i & 1) != 0) matched.push_back(patterns[i]);
        const Schemas schemas = schemas_of_others(facts, matched, context_);
        if ((matched.empty() && closed(facts)) || is_false(schemas)) return entry->second;
        const std::string part = matched.empty() ? "additionalProperties" : "patternProperties." + matched[0];
        entry->second = {a_.byte('"', rules_.colon(a_.call(inner(schemas, part), a_.end_of_rule())))};
        return entry->second;
      });
  return a_.byte('"', inside);
}

Result<StateId> SchemaCompiler::object(const Facts& facts) {
  const bool any =
      facts.objects.empty() && facts.required.empty() && facts.absent.empty() && facts.names.empty();
  if (any && !facts.members.limits()) return rules_.any_object();
  if (facts.members.empty()) return a_.split({});
  bool impossible = false;
  std::vector<std::string> named;
  ASSIGN_OR_RETURN(const auto properties, this->properties(facts, impossible, named));
  if (impossible) return a_.split({});
  ASSIGN_OR_RETURN(const StateId other, other_member(facts, named));
  Counts counts = facts.members;
  const auto required = static_cast<uint32_t>(
      std::count_if(properties.begin(), properties.end(), [](const Property& p) { return p.required; }));
  if (counts.min <= required) counts.min = 0;
  if (other < 0 && counts.max >= properties.size()) counts.max = kUnlimited;
  // Free keys may be said twice and then count once: two different ones cannot be promised.
  if (other >= 0 && counts.min > properties.size() + 1)
    return invalid("minProperties above {} is not supported{}", properties.size() + 1,
                   properties.empty() ? "" : ": that is the number of named properties and one");
  if (counts.min > 10'000 || (counts.max != kUnlimited && counts.max > 10'000))
    return invalid("minProperties or maxProperties above 10,000 is not supported");
  return Record(*this, properties, counts).build(other >= 0, [&](StateId next) {
    return a_.call(other, next);
  });
}

}  // namespace moesaic::grammar
