// oneOf, if, dependent... and not as lists of schemas one of which must hold.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "grammar/schema_cases.h"

namespace moesaic::grammar {
namespace {

// Pairs of oneOf's members are looked at as long as this takes no more steps of all that there are.
constexpr uint64_t kOneOfWork = 400'000;
constexpr const char* kAsAnyOf = "oneOf is taken as anyOf where its members cannot be told apart";

Json text_with(const char* keyword, const Json& value) { return {{"type", "string"}, {keyword, value}}; }

const char* type_name(unsigned type) {
  switch (type) {
    case kObject:
      return "object";
    case kArray:
      return "array";
    case kString:
      return "string";
    case kBoolean:
      return "boolean";
    default:
      return "null";
  }
}

// Describes values of none of these types. A number that is no integer cannot be said: false where it is
// needed.
bool negate_type(const Json& type, Json& ways) {
  const auto types = types_of(type);
  if (!types.ok()) return false;
  Json others = Json::array();
  for (const unsigned other : {kObject, kArray, kString, kBoolean, kNull})
    if ((types.value() & other) == 0) others.push_back(type_name(other));
  if ((types.value() & kNumber) == 0) others.push_back("number");
  ways.push_back({{"type", others}});
  return (types.value() & kNumber) == 0 || (types.value() & kNumber) == kNumber;
}

// The opposite limit, for whole numbers.
void negate_count(const std::string& keyword, const Json& value, Json& ways) {
  const bool min = keyword.starts_with("min");
  if (!value.is_number_unsigned() || (min && value == 0) || value.get<uint64_t>() > kUnlimited) return;
  const char* type = keyword.ends_with("Length") ? "string" : keyword.ends_with("Items") ? "array" : "object";
  const std::string other = (min ? "max" : "min") + keyword.substr(3);
  ways.push_back({{"type", type}, {other, value.get<uint64_t>() + (min ? -1 : 1)}});
}

void negate_bound(const std::string& keyword, const Json& value, const Json& schema, Json& ways) {
  const bool low = keyword.ends_with("inimum");
  const bool flag = schema.value(low ? "exclusiveMinimum" : "exclusiveMaximum", Json()) == true;
  const bool exclusive = keyword.starts_with("exclusive") || flag;
  if (!value.is_number()) return;
  const char* other = exclusive ? (low ? "maximum" : "minimum")
                      : low     ? "exclusiveMaximum"
                                : "exclusiveMinimum";
  ways.push_back({{"type", "number"}, {other, value}});
}

// The names of properties that a schema says something of, references and allOf included.
void add_names(const Json& schema, SchemaContext& context, int depth, std::set<std::string>& names) {
  context.work().add(1);
  context.add_keywords(schema);
  if (!schema.is_object() || depth > 8 || context.work().spent()) return;
  const auto add_size = [&](const Json& list) { context.work().add(list.size()); };
  if (has(schema, "properties") && schema["properties"].is_object()) {
    add_size(schema["properties"]);
    for (const auto& [name, unused] : *schema["properties"].get_ptr<const Json::object_t*>())
      names.insert(name);
  }
  if (has(schema, "required") && schema["required"].is_array()) {
    add_size(schema["required"]);
    for (const Json& name : schema["required"])
      if (name.is_string()) names.insert(name.get<std::string>());
  }
  const auto targets = context.references(schema);
  if (targets.ok())
    for (const Json* target : targets.value()) add_names(*target, context, depth + 1, names);
  if (has(schema, "allOf") && schema["allOf"].is_array())
    for (const Json& member : schema["allOf"]) add_names(member, context, depth + 1, names);
}

// The schema, behind references that say nothing else.
const Json* behind_references(const Json* schema, SchemaContext& context) {
  for (int i = 0; i < 8 && schema->is_object() && schema->size() == 1; ++i) {
    const auto targets = context.references(*schema);
    if (!targets.ok() || targets.value().empty()) break;
    schema = targets.value()[0];
  }
  return schema;
}

// Properties that `one` speaks of and `other` does not allow, as schemas that require them.
Json foreign_properties(const Json& one, const Json* other, SchemaContext& context) {
  constexpr size_t kMost = 20;
  Json ways = Json::array();
  other = behind_references(other, context);
  if (!has(*other, "additionalProperties") || (*other)["additionalProperties"] != false) return ways;
  if (has(*other, "patternProperties")) return ways;
  std::set<std::string> names;
  add_names(one, context, 0, names);
  for (const std::string& name : names) {
    const bool own = has(*other, "properties") && context.member((*other)["properties"], name) != nullptr;
    if (!own && ways.size() < kMost)
      ways.push_back({{"type", "object"}, {"required", Json::array({name})}, {kRewritten, true}});
  }
  return ways;
}

bool is_count(const std::string& keyword) {
  return keyword.ends_with("Length") || keyword.ends_with("Items") || keyword.ends_with("Properties");
}

}  // namespace

std::optional<Json> SchemaCases::negated(const Json* schema) {
  if (negation(schema) == nullptr) return std::nullopt;
  return Json{{"not", context_.link(schema)}};
}

// Member `which` and none of the others that may hold beside it. loosely: but for those that are negated in
// part only.
Json SchemaCases::only(const Json& members, size_t which, bool loosely, bool& enforced) {
  const Json* one = &members[which];
  Json all = Json::array({context_.link(one)});
  for (size_t i = 0; i < members.size(); ++i) {
    if (i == which || !plausible({one, &members[i]}, 3)) continue;
    Json ways = foreign_properties(*one, &members[i], context_);
    if (const auto no = negated(&members[i])) ways.push_back(*no);
    const bool same = context_.same(one) == context_.same(&members[i]);
    const bool drop = loosely && !same && is_partly_negated(&members[i]);
    enforced = enforced && !ways.empty() && !drop;
    if (!ways.empty() && !drop) all.push_back({{"anyOf", std::move(ways)}});
  }
  return all.size() == 1 ? all[0] : Json{{"allOf", std::move(all)}};
}

const Json* SchemaCases::one_of(const Json& members) {
  if (loose_) return context_.note(kAsAnyOf), &members;
  const auto [entry, fresh] = one_ofs_.try_emplace(context_.same(&members), &members);
  if (!fresh || members.size() < 2) return entry->second;
  const uint64_t limit = context_.work().done() + kOneOfWork;
  Json list;
  bool enforced = true, alive = false;
  // Where no member is left, it may be since only a part of what is not another one is known.
  for (const bool loosely : {false, true}) {
    list = Json::array(), enforced = true;
    for (size_t i = 0; i < members.size() && context_.work().done() < limit; ++i) {
      list.push_back(only(members, i, loosely, enforced));
      alive = alive || plausible({context_.keep(list.back())}, 3);
    }
    if (alive) break;
  }
  if (list.size() < members.size()) return context_.note(kAsAnyOf), &members;
  if (!enforced) context_.note(kAsAnyOf);
  return one_ofs_[context_.same(&members)] = context_.keep(std::move(list));
}

const Json* SchemaCases::if_then_else(const Json& schema) {
  const auto [entry, fresh] = ifs_.try_emplace(&schema, nullptr);
  if (!fresh) return entry->second;
  const Json* condition = &schema["if"];
  Json then = Json::array({context_.link(condition)}), otherwise = Json::array(), list = Json::array();
  if (has(schema, "then")) then.push_back(context_.link(&schema["then"]));
  list.push_back({{"allOf", then}});
  if (const auto no = negated(condition)) {
    otherwise.push_back(*no);
    if (has(schema, "else")) otherwise.push_back(context_.link(&schema["else"]));
    list.push_back({{"allOf", otherwise}});
  }
  return ifs_[&schema] = context_.keep(std::move(list));
}

// The property is absent, or there with what it needs.
Result<const Json*> SchemaCases::dependent(const Json& needs, const std::string& name) {
  const auto [entry, fresh] = dependents_.try_emplace({&needs, name}, nullptr);
  if (!fresh) return entry->second;
  const Json* need = context_.member(needs, name);
  if (need->is_array() && need->empty()) return nullptr;
  Json required = Json::array({name});
  Json there = {{"required", required}};
  if (need->is_array() || need->is_string()) {
    for (const Json& other : need->is_array() ? *need : Json::array({*need}))
      there["required"].push_back(other);
  } else {
    there = Json{{"allOf", Json::array({there, context_.link(need)})}};
  }
  Json others = Json::array({"array", "string", "number", "boolean", "null"});
  Json list = Json::array({Json{{kAbsent, required}}, std::move(there), Json{{"type", others}}});
  return dependents_[{&needs, name}] = context_.keep(std::move(list));
}

const Json* SchemaCases::negation(const Json* schema) {
  schema = context_.same(behind_references(schema, context_));
  const auto known = negations_.find(schema);
  if (known != negations_.end()) {
    partial_ = partial_ || is_partly_negated(schema);
    return known->second;
  }
  if (!negating_.insert(schema).second || context_.work().spent()) return partial_ = true, nullptr;
  context_.work().add(4);
  const bool partial = std::exchange(partial_, false);
  const Json ways = negations_of(*schema);
  negating_.erase(schema);
  const bool unknown = ways.is_null();
  if (partial_ || unknown) partly_negated_.insert(schema);
  partial_ = partial_ || partial || unknown;
  return negations_[schema] = unknown ? nullptr : context_.keep(ways);
}

bool SchemaCases::is_partly_negated(const Json* schema) {
  return partly_negated_.contains(context_.same(behind_references(schema, context_)));
}

// Null where no part is known.
Json SchemaCases::negations_of(const Json& schema) {
  Json ways = Json::array();
  if (schema == true) return ways;
  if (schema == false) return Json::array({true});
  if (!schema.is_object()) return nullptr;
  bool says = false;
  for (const auto& [keyword, value] : *schema.get_ptr<const Json::object_t*>()) {
    static const std::set<std::string_view> kCombining = {
        "$ref", "$dynamicRef",       "$recursiveRef",    kLink,          "allOf", "anyOf", "oneOf", "not",
        "if",   "dependentRequired", "dependentSchemas", "dependencies", "enum",  "const", "type",  kDiffers};
    const bool combines = kCombining.contains(keyword);
    if (!combines && type_of_keyword(keyword) == 0) continue;
    says = says || !(value == false || (value.is_object() && value.empty() && keyword == "properties"));
    if (combines)
      negate_combination(keyword, value, schema, ways);
    else
      negate_keyword(keyword, value, schema, ways);
  }
  return says && ways.empty() ? Json() : ways;
}

void SchemaCases::negate_keyword(const std::string& keyword, const Json& value, const Json& schema,
                                 Json& ways) {
  if (keyword == "pattern" && value.is_string())
    return ways.push_back(text_with(kNotPattern, Json::array({value})));
  if (keyword == kNotPattern && value.is_array() && value.size() == 1)
    return ways.push_back(text_with("pattern", value[0]));
  if (keyword.ends_with("inimum") || keyword.ends_with("aximum")) {
    if (!value.is_boolean()) negate_bound(keyword, value, schema, ways);
    return;
  }
  const bool limit = keyword.starts_with("min") || keyword.starts_with("max");
  if (limit && is_count(keyword)) return negate_count(keyword, value, ways);
  const bool items = keyword == "items" && (value.is_object() || value.is_boolean());
  if (items && !has(schema, "prefixItems")) {
    if (const auto no = negated(&value)) ways.push_back({{"type", "array"}, {"contains", *no}});
  } else if (keyword == "contains" && !has(schema, "minContains")) {
    if (const auto no = negated(&value)) ways.push_back({{"type", "array"}, {"items", *no}});
  } else {
    negate_object(keyword, value, ways);
  }
}

void SchemaCases::negate_object(const std::string& keyword, const Json& value, Json& ways) {
  const auto object = [&](Json more) {
    more["type"] = "object", more[kRewritten] = true;
    ways.push_back(std::move(more));
  };
  if ((keyword == "required" || keyword == kAbsent) && value.is_array()) {
    const char* opposite = keyword == "required" ? kAbsent : "required";
    for (const Json& name : value) object({{opposite, Json::array({name})}});
  } else if (keyword == "properties" && value.is_object()) {
    for (const auto& [name, property] : *value.get_ptr<const Json::object_t*>())
      if (const auto no = negated(&property))
        object({{"properties", Json{{name, *no}}}, {"required", Json::array({name})}});
  } else {
    partial_ = true;
  }
}

void SchemaCases::negate_combination(const std::string& keyword, const Json& value, const Json& schema,
                                     Json& ways) {
  const auto add = [&](const std::optional<Json>& way) {
    if (way) ways.push_back(*way);
  };
  if (keyword == "type") {
    const bool exact = schema.value("nullable", Json()) != true && negate_type(value, ways);
    partial_ = partial_ || !exact;
  } else if (keyword == "enum" || keyword == "const") {
    if (value.is_array() || keyword == "const")
      ways.push_back({{kDiffers, keyword == "const" ? Json::array({value}) : value}});
  } else if (keyword == kDiffers) {
    ways.push_back({{"enum", value}});
  } else if (keyword == "not") {
    ways.push_back(context_.link(&value));
  } else if (keyword == "allOf" && value.is_array()) {
    for (const Json& member : value) add(negated(&member));
  } else if ((keyword == "anyOf" || keyword == "oneOf") && value.is_array()) {
    Json all = Json::array();
    for (const Json& member : value)
      if (const auto no = negated(&member)) all.push_back(*no);
    if (all.size() == value.size()) ways.push_back({{"allOf", std::move(all)}});
  } else if (keyword.starts_with("dependen") && value.is_object()) {
    for (const auto& [name, unused] : *value.get_ptr<const Json::object_t*>()) {
      const auto list = dependent(value, name);
      if (list.ok() && list.value() != nullptr) add(negated(context_.keep(Json{{"anyOf", *list.value()}})));
    }
  } else if (keyword == "if" && (has(schema, "then") || has(schema, "else"))) {
    add(negated(context_.keep(Json{{"anyOf", *if_then_else(schema)}})));
  } else if (const auto targets = context_.references(Json{{keyword, value}}); targets.ok()) {
    for (const Json* target : targets.value()) {
      const Json* list = negation(target);
      if (list == nullptr) continue;
      for (const Json& way : *list) ways.push_back(context_.link(&way));
    }
  }
}

}  // namespace moesaic::grammar
