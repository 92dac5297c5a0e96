#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "grammar/machine.h"
#include "grammar/numbers.h"
#include "grammar/pattern.h"
#include "grammar/schema_merge.h"

namespace moesaic::grammar {
namespace {

constexpr std::array kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};

// Which type a keyword speaks of, for schemas that do not say.
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kTypeOfKeyword = {{
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"format", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"additionalItems", "array"},
}};

struct Counts {
  uint32_t min = 0, max = kUnlimited;
  bool empty() const { return min > max; }
  Counts without(uint32_t n) const { return {min > n ? min - n : 0, max == kUnlimited ? max : max - n}; }
};

// Names by their characters.
struct NameTree {
  std::map<char32_t, NameTree> children;
  bool name = false;
};

bool has_type(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  return type == value.type_name();
}

class Compiler {
 public:
  Compiler(Automaton& a, JsonRules& rules, const Json& root, const std::string& name)
      : a_(a), rules_(rules), merger_(root), name_(name) {}

  Result<StateId> compile(const Json& root) {
    const StateId rule = this->rule(root, "");
    // Not by recursion: references may lead from schema to schema thousands deep.
    while (!open_.empty()) {
      const Open next = std::move(open_.back());
      open_.pop_back();
      path_ = next.path;
      const auto made = any(next.schema);
      if (!made.ok()) return in_place(made.status());
      a_.define(next.forward, {made.value()});
      if (a_.full()) return in_place(invalid("the schema needs over {} states", Automaton::kMaxStates));
    }
    return rule;
  }
  const std::set<std::string>& notes() const { return merger_.notes(); }

 private:
  struct Open {
    StateId forward;
    Json schema;
    std::string path;
  };
  struct Property {
    std::string name;
    StateId value;
    bool required;
  };

  Status in_place(const Status& status) const {
    return invalid("{}: {}{}{}", name_, path_, path_.empty() ? "" : ": ", status.message());
  }
  // A rule for a schema, made later; the same schema has the same rule.
  StateId rule(const Json& schema, const std::string& path) {
    const auto [entry, fresh] = rules_by_text_.try_emplace(schema.dump(), -1);
    if (fresh) open_.push_back({entry->second = a_.forward(), schema, path});
    return entry->second;
  }
  StateId inner(const Json& schema, const std::string& part) {
    return rule(schema, path_.empty() ? part : path_ + "." + part);
  }
  static bool is_any(const Json& schema) { return schema == true || (schema.is_object() && schema.empty()); }

  Result<StateId> any(const Json& schema);
  Result<StateId> of_type(const Json& flat, const std::string& type);
  Result<StateId> values(const Json& flat);
  Result<StateId> string(const Json& flat);
  Result<StateId> number(const Json& flat, bool whole);
  Result<StateId> array(const Json& flat);
  Result<StateId> object(const Json& flat);
  StateId map(StateId value, Counts counts);
  StateId record(const std::vector<Property>& properties, StateId more);
  StateId other_key(const std::vector<std::string>& names, StateId next);
  StateId outside(const NameTree& fork, StateId free, StateId end);

  Result<std::vector<std::string>> types(const Json& flat) const;
  Result<Counts> counts(const Json& flat, const char* min, const char* max) const;
  Result<std::vector<Property>> properties(const Json& flat, const Json& other);
  Result<bool> admits(const Json& flat, const Json& value, const std::vector<std::string>& types);

  Automaton& a_;
  JsonRules& rules_;
  SchemaMerger merger_;
  const std::string& name_;
  std::string path_;
  std::unordered_map<std::string, StateId> rules_by_text_;
  std::vector<Open> open_;
};

Result<StateId> Compiler::any(const Json& schema) {
  if (is_any(schema)) return rules_.any_value();
  ASSIGN_OR_RETURN(Json flat, merger_.flatten(schema));
  if (flat.empty()) return rules_.any_value();
  if (flat.contains("anyOf")) {
    const Json members = flat["anyOf"];
    flat.erase("anyOf");
    std::vector<StateId> rules;
    for (size_t i = 0; i < members.size(); ++i) {
      const Json member = flat.empty() ? members[i] : Json{{"allOf", Json::array({flat, members[i]})}};
      rules.push_back(inner(member, fmt::format("anyOf[{}]", i)));
    }
    return a_.split(rules);
  }
  if (flat.contains("enum")) return values(flat);
  ASSIGN_OR_RETURN(const auto types, this->types(flat));
  std::vector<StateId> rules;
  for (const std::string& type : types) {
    ASSIGN_OR_RETURN(rules.emplace_back(), of_type(flat, type));
  }
  return a_.split(rules);
}

Result<std::vector<std::string>> Compiler::types(const Json& flat) const {
  std::vector<std::string> types;
  if (flat.contains("type")) {
    const Json list = flat["type"].is_array() ? flat["type"] : Json::array({flat["type"]});
    for (const Json& type : list) {
      if (!type.is_string() || std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end())
        return invalid("type {} is none of JSON Schema's", type.dump());
      types.push_back(type);
    }
  } else {
    for (const auto& [keyword, type] : kTypeOfKeyword)
      if (flat.contains(std::string(keyword)) && std::find(types.begin(), types.end(), type) == types.end())
        types.emplace_back(type);
  }
  if (types.empty() && !flat.contains("type")) types.assign(kTypes.begin(), kTypes.end());
  if (flat.value("nullable", Json(false)) == true) types.emplace_back("null");
  const auto is = [&](const char* type) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  if (is("number")) std::erase(types, "integer");
  return types;
}

Result<StateId> Compiler::of_type(const Json& flat, const std::string& type) {
  if (type == "object") return object(flat);
  if (type == "array") return array(flat);
  if (type == "string") return string(flat);
  if (type == "number" || type == "integer") return number(flat, type == "integer");
  if (type == "null") return a_.literal("null", a_.end_of_rule());
  return a_.split({a_.literal("true", a_.end_of_rule()), a_.literal("false", a_.end_of_rule())});
}

// What an enum's value must be beside being listed. Of lists and objects only the type is looked at.
Result<bool> Compiler::admits(const Json& flat, const Json& value, const std::vector<std::string>& types) {
  for (const std::string& type : types) {
    if (!has_type(value, type)) continue;
    if (value.is_structured() || value.is_boolean() || value.is_null()) return true;
    ASSIGN_OR_RETURN(const StateId rule, of_type(flat, type));
    if (accepts(a_, rule, text::compact_json(value))) return true;
  }
  return false;
}

Result<StateId> Compiler::values(const Json& flat) {
  Json rest = flat;
  rest.erase("enum");
  ASSIGN_OR_RETURN(const auto types, this->types(rest));
  std::vector<StateId> ways;
  for (const Json& value : flat["enum"]) {
    bool admitted = rest.empty();
    if (!admitted) {
      ASSIGN_OR_RETURN(admitted, admits(rest, value, types));
    }
    if (admitted) ways.push_back(rules_.value(value, a_.end_of_rule()));
  }
  return a_.split(ways);
}

Result<Counts> Compiler::counts(const Json& flat, const char* min, const char* max) const {
  Counts counts;
  for (const char* keyword : {min, max}) {
    if (!flat.contains(keyword)) continue;
    const Json& value = flat[keyword];
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(number >= 0) || number != std::floor(number))
      return invalid("{} must be a number of 0 or more, without a fraction", keyword);
    // What is too large to count is unlimited, or, for a minimum, never reached.
    const bool too_large = number >= kUnlimited;
    (keyword == min ? counts.min : counts.max) = too_large ? kUnlimited : static_cast<uint32_t>(number);
  }
  return counts;
}

Result<StateId> Compiler::string(const Json& flat) {
  ASSIGN_OR_RETURN(const Counts length, counts(flat, "minLength", "maxLength"));
  std::string pattern;
  for (const char* keyword : {"pattern", "format"}) {
    if (!flat.contains(keyword)) continue;
    if (!flat[keyword].is_string()) return invalid("{} must be a string", keyword);
    const auto text = flat[keyword].get<std::string>();
    const bool format = std::string_view(keyword) == "format";
    const auto meant = format ? std::string(pattern_of_format(text)) : text;
    if (format && meant.empty()) merger_.note("the format \"" + text + "\" is ignored");
    if (format && !meant.empty() && flat.contains("pattern"))
      return invalid("pattern and format together are not supported");
    if (!meant.empty()) pattern = meant;
  }
  const StateId quote = a_.byte('"', a_.end_of_rule());
  if (!pattern.empty()) {
    auto parsed = parse_pattern(pattern);
    if (!parsed.ok()) return invalid("pattern: {}", parsed.status().message());
    return a_.byte('"', patterned_string(a_, parsed.value(), length.min, length.max, quote));
  }
  if (length.min == 0 && length.max == kUnlimited) return rules_.any_string();
  if (length.empty()) return a_.split({});
  return a_.byte('"', a_.repeat(rules_.character(), length.min, length.max, quote));
}

Result<StateId> Compiler::number(const Json& flat, bool whole) {
  NumberRange range;
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    if (!flat.contains(keyword)) continue;
    const Json& value = flat[keyword];
    if (!value.is_number()) return invalid("{} must be a number", keyword);
    const Decimal decimal = value.is_number_unsigned()  ? decimal_of(value.get<uint64_t>())
                            : value.is_number_integer() ? decimal_of(value.get<int64_t>())
                                                        : decimal_of(value.get<double>());
    const std::string_view name = keyword;
    const bool low = name.ends_with("inimum"), exclusive = name.starts_with("exclusive");
    const char* other = low ? "minimum" : "maximum";
    // Both kinds: the stricter one counts; of equals the exclusive one.
    const bool weaker =
        exclusive && flat.contains(other) && (low ? value < flat[other] : value > flat[other]);
    if (!weaker) (low ? range.low : range.high) = Bound{decimal, !exclusive};
  }
  if (!range.low && !range.high) return whole ? rules_.any_integer() : rules_.any_number();
  return whole ? integers(a_, range, a_.end_of_rule()) : numbers(a_, range, a_.end_of_rule());
}

Result<StateId> Compiler::array(const Json& flat) {
  ASSIGN_OR_RETURN(const Counts counts, this->counts(flat, "minItems", "maxItems"));
  // Older drafts spell prefixItems and items as items and additionalItems.
  const bool old = flat.contains("items") && flat["items"].is_array();
  const Json first = old ? flat["items"] : flat.value("prefixItems", Json::array());
  const Json rest = flat.value(old ? "additionalItems" : "items", Json(true));
  if (!rest.is_object() && !rest.is_boolean()) return invalid("additionalItems must be a schema");
  if (counts.empty()) return a_.split({});
  if (first.empty() && is_any(rest) && counts.min == 0 && counts.max == kUnlimited) return rules_.any_array();

  // The items that stand alone: the first one, with no comma before it, and those with their own schema.
  const auto alone = std::min(std::max(static_cast<uint32_t>(first.size()), 1u), counts.max);
  const StateId end = rules_.close(']'), item = inner(rest, "items");
  const Counts others = counts.without(alone);
  StateId next = a_.repeat(rules_.comma(a_.call(item, a_.end_of_rule())), others.min, others.max, end);
  for (uint32_t i = alone; i-- > 0;) {
    const StateId own = i < first.size() ? inner(first[i], fmt::format("prefixItems[{}]", i)) : item;
    const StateId here = a_.call(own, next), way = i == 0 ? rules_.space(here) : rules_.comma(here);
    next = i >= counts.min ? a_.split({end, way}) : way;
  }
  return a_.byte('[', alone == 0 ? end : next);
}

Result<std::vector<Compiler::Property>> Compiler::properties(const Json& flat, const Json& other) {
  std::vector<Property> properties;
  std::set<std::string> required;
  for (const Json& name : flat.value("required", Json::array())) {
    if (!name.is_string()) return invalid("required must be a list of strings");
    required.insert(name.get<std::string>());
  }
  const auto add = [&](const std::string& name, const Json& schema) {
    properties.push_back({name, inner(schema, "properties." + name), required.erase(name) > 0});
  };
  const Json named = flat.value("properties", Json::object());
  for (const auto& [key, schema] : named.items()) add(key, schema);
  for (const std::string& name : std::set(required)) add(name, other);
  return properties;
}

Result<StateId> Compiler::object(const Json& flat) {
  ASSIGN_OR_RETURN(const Counts counts, this->counts(flat, "minProperties", "maxProperties"));
  // Properties close an object that does not say otherwise: what is not named is rarely meant.
  const bool closed = flat.contains("properties") && !flat["properties"].empty();
  const Json other = flat.value("additionalProperties", Json(!closed));
  ASSIGN_OR_RETURN(const auto properties, this->properties(flat, other));
  const bool counted = counts.min > 0 || counts.max != kUnlimited;
  if (properties.empty()) {
    if (!counted && is_any(other)) return rules_.any_object();
    // Free keys may be said twice and then count once: two different ones cannot be promised.
    if (counts.min > 1) return invalid("minProperties above 1 is not supported");
    return counts.empty() ? a_.split({}) : map(inner(other, "additionalProperties"), counts);
  }
  const auto required = static_cast<size_t>(
      std::count_if(properties.begin(), properties.end(), [](const Property& p) { return p.required; }));
  const bool fits = counts.max == kUnlimited || (other == false && counts.max >= properties.size());
  const bool implied = counts.min <= required && fits;
  if (counted && !implied)
    return invalid("minProperties and maxProperties beside properties are not supported");
  return record(properties, other == false ? -1 : inner(other, "additionalProperties"));
}

// Any keys, counted.
StateId Compiler::map(StateId value, Counts counts) {
  const StateId end = rules_.close('}');
  const auto member = [&](StateId next) {
    return a_.byte('"', a_.call(rules_.string_tail(), rules_.colon(a_.call(value, next))));
  };
  const StateId empty = counts.min == 0 ? end : a_.split({});
  if (counts.max == 0) return a_.byte('{', empty);
  const Counts more = counts.without(1);
  const StateId tail = a_.repeat(rules_.comma(member(a_.end_of_rule())), more.min, more.max, end);
  return a_.byte('{', a_.split({empty, rules_.space(member(tail))}));
}

// The properties in their order, then, unless `more` is negative, others whose values follow it.
StateId Compiler::record(const std::vector<Property>& properties, StateId more) {
  const StateId end = rules_.close('}');
  // `keys`: where a key may stand; `behind`: where a comma or the end does.
  StateId keys = a_.split({}), behind = end;
  if (more >= 0) {
    std::vector<std::string> names;
    for (const Property& p : properties) names.push_back(p.name);
    behind = a_.forward();
    keys = other_key(names, rules_.colon(a_.call(more, behind)));
    a_.define(behind, {end, rules_.comma(keys)});
  }
  bool may_end = true;
  for (size_t i = properties.size(); i-- > 0;) {
    const Property& p = properties[i];
    const StateId member = rules_.quoted(p.name, rules_.colon(a_.call(p.value, behind)));
    keys = p.required ? member : a_.split({member, keys});
    may_end = may_end && !p.required;
    behind = may_end ? a_.split({end, rules_.comma(keys)}) : rules_.comma(keys);
  }
  return a_.byte('{', may_end ? a_.split({end, rules_.space(keys)}) : rules_.space(keys));
}

StateId Compiler::other_key(const std::vector<std::string>& names, StateId next) {
  NameTree tree;
  for (const std::string& name : names) {
    NameTree* at = &tree;
    for (const char32_t c : code_points(name)) at = &at->children[c];
    at->name = true;
  }
  return a_.byte('"', outside(tree, a_.call(rules_.string_tail(), next), a_.byte('"', next)));
}

// Behind what leads to this fork: a way to leave the tree of names, or an end where no name ends. Inside the
// tree characters have their usual spelling only, so that no escape spells a name.
StateId Compiler::outside(const NameTree& fork, StateId free, StateId end) {
  std::vector<StateId> ways;
  if (!fork.name) ways.push_back(end);
  CharSet taken;
  for (const auto& [c, child] : fork.children) {
    taken.push_back({c, c});
    ways.push_back(string_character(a_, {{c, c}}, outside(child, free, end)));
  }
  ways.push_back(string_character(a_, complement(taken), free));
  return a_.split(ways);
}

}  // namespace

Result<StateId> schema_rule(Automaton& a, JsonRules& rules, std::string_view schema, const std::string& name,
                            std::vector<std::string>& notes) {
  ASSIGN_OR_RETURN(const Json root, text::parse_ordered_json(schema, name));
  Compiler compiler(a, rules, root, name);
  ASSIGN_OR_RETURN(const StateId rule, compiler.compile(root));
  notes.insert(notes.end(), compiler.notes().begin(), compiler.notes().end());
  return rule;
}

}  // namespace moesaic::grammar
