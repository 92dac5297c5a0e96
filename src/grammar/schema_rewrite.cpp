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
constexpr const char* kAnyElse =
    "a value that meets an if may follow else instead of then, where the condition cannot be excluded";
// Members of a oneOf of which every two are looked at for what does not satisfy it.
constexpr size_t kMaxPaired = 8;

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

Json of_types(unsigned types) {
  Json names = Json::array();
  for (const unsigned type : {kObject, kArray, kString, kBoolean, kNull})
    if ((types & type) != 0) names.push_back(type_name(type));
  if ((types & kInteger) != 0) names.push_back("integer");
  if ((types & kFraction) != 0) names.push_back(kFractions);
  return {{"type", std::move(names)}};
}

// Each of these adds what does not satisfy a keyword, and is false where that is not all.
bool negate_type(const Json& type, bool nullable, Json& ways) {
  const auto known = types_of(type);
  if (!known.ok()) return false;
  ways.push_back(of_types(~(known.value() | (nullable ? unsigned{kNull} : 0))));
  return true;
}

// The opposite limit, for whole numbers.
bool negate_count(const std::string& keyword, const Json& value, Json& ways) {
  const bool min = keyword.starts_with("min");
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kUnlimited) return false;
  if (min && value == 0) return true;
  const char* type = keyword.ends_with("Length") ? "string" : keyword.ends_with("Items") ? "array" : "object";
  const std::string other = (min ? "max" : "min") + keyword.substr(3);
  ways.push_back({{"type", type}, {other, value.get<uint64_t>() + (min ? -1 : 1)}});
  return true;
}

bool negate_bound(const std::string& keyword, const Json& value, const Json& schema, Json& ways) {
  if (value.is_boolean()) return true;  // said with its limit
  if (!value.is_number()) return false;
  const bool low = keyword.ends_with("inimum");
  const bool flag = schema.value(low ? "exclusiveMinimum" : "exclusiveMaximum", Json()) == true;
  const bool exclusive = keyword.starts_with("exclusive") || flag;
  const char* other = exclusive ? (low ? "maximum" : "minimum")
                      : low     ? "exclusiveMaximum"
                                : "exclusiveMinimum";
  ways.push_back({{"type", "number"}, {other, value}});
  return true;
}

// Does the keyword exclude nothing?
bool is_free(const std::string& keyword, const Json& value, const Json& schema) {
  if (keyword == "contains") return false;
  if (keyword == "uniqueItems") return value == false;
  if (keyword == "additionalItems" && !(has(schema, "items") && schema["items"].is_array())) return true;
  if (keyword == "format") return value.is_string() && pattern_of_format(value.get<std::string>()).empty();
  return value == true || (value.is_structured() && value.empty());
}

bool closes(const Json& schema) {
  return has(schema, "additionalProperties") && schema["additionalProperties"] == false &&
         !has(schema, "patternProperties");
}

bool names_properties(const Json& schema) {
  return has(schema, "properties") && !schema["properties"].empty();
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

// Properties of `one` that `other` does not have, as schemas that require them, where neither has others.
std::optional<Json> foreign_properties(const Json& one, const Json& other, SchemaContext& context) {
  constexpr size_t kMost = 20;
  if (!closes(one) || !closes(other)) return std::nullopt;
  Json ways = Json::array();
  if (!has(one, "properties") || !one["properties"].is_object()) return ways;
  context.work().add(one["properties"].size());
  for (const auto& [name, unused] : one["properties"].items()) {
    const bool own = has(other, "properties") && context.member(other["properties"], name) != nullptr;
    if (!own) ways.push_back({{"type", "object"}, {"required", Json::array({name})}, {kRewritten, true}});
    if (ways.size() > kMost) return std::nullopt;
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

const Json* SchemaCases::negated_beside(const Json* one, const Json* schema) {
  if (context_.same(one) == context_.same(schema)) return context_.keep(Json::array());
  const auto no = negated(schema);
  Json ways = no ? Json::array({*no}) : Json::array();
  if (is_partly_negated(schema)) {
    const Json* other = context_.same(behind_references(schema, context_));
    one = behind_references(one, context_);
    const auto foreign = foreign_properties(*one, *other, context_);
    const auto closed = made().closed.find(other);
    if (!foreign || closed == made().closed.end()) return nullptr;
    context_.work().add(closed->second.size());
    for (const std::string& name : closed->second)
      if (has(*one, "properties") && context_.member((*one)["properties"], name) != nullptr) return nullptr;
    ways.insert(ways.end(), foreign->begin(), foreign->end());
  }
  return context_.keep(std::move(ways));
}

const Json* SchemaCases::schema_of_types(unsigned types) {
  const Json*& schema = typed_[types];
  return schema != nullptr ? schema : schema = context_.keep(of_types(types));
}

bool SchemaCases::told_apart(const Json* one, const Json* other, unsigned& types) {
  // A oneOf in one of them leads here again.
  const auto may_both = [&](bool any_type, unsigned of) {
    Schemas both = {one, other};
    if (of != kAllTypes) both.push_back(schema_of_types(of));
    const bool before = std::exchange(any_type_, any_type), may = plausible(both, 3);
    any_type_ = before;
    return may;
  };
  if (!may_both(true, types)) return true;
  if (may_both(false, kAllTypes)) return false;
  for (unsigned type = 1; type < kAllTypes; type *= 2)
    if ((types & type) != 0 && may_both(false, type)) types &= ~type;
  return !may_both(true, types);  // where their properties name no types, these may be shared, too
}

// Member `which` and none of the others that may hold beside it, but for those of which it is not known when
// they do not.
Json SchemaCases::only(const Json& members, size_t which, bool& enforced) {
  const Json* one = &members[which];
  Json all = Json::array({context_.link(one)});
  unsigned types = kAllTypes;
  for (size_t i = 0; i < members.size(); ++i) {
    if (i == which || told_apart(one, &members[i], types)) continue;
    if (const Json* ways = negated_beside(one, &members[i]))
      all.push_back({{"anyOf", *ways}});
    else
      enforced = false;
  }
  if (types != kAllTypes) all.push_back(of_types(types));
  return all.size() == 1 ? all[0] : Json{{"allOf", std::move(all)}};
}

SchemaCases::Ways SchemaCases::one_of(const Json& members) {
  const Ways loose{&members, kAsAnyOf};
  if (loose_) return loose;
  const auto [entry, fresh] = made().one_ofs.try_emplace(context_.same(&members), loose);
  if (!fresh) return entry->second;
  const uint64_t limit = context_.work().done() + kOneOfWork;
  Json list = Json::array();
  bool enforced = true;
  for (size_t i = 0; i < members.size() && context_.work().done() < limit; ++i)
    list.push_back(only(members, i, enforced));
  if (list.size() < members.size()) return loose;
  return made().one_ofs[context_.same(&members)] = {context_.keep(std::move(list)),
                                                    enforced ? nullptr : kAsAnyOf};
}

SchemaCases::Ways SchemaCases::if_then_else(const Json& schema) {
  const auto [entry, fresh] = made().ifs.try_emplace(&schema, Ways{});
  if (!fresh) return entry->second;
  const Json* condition = &schema["if"];
  Json then = Json::array({context_.link(condition)}), otherwise = Json::array();
  const auto no = negated(condition);
  const bool exact = !is_partly_negated(condition);
  if (exact) otherwise.push_back(*no);
  if (has(schema, "then")) then.push_back(context_.link(&schema["then"]));
  if (has(schema, "else")) otherwise.push_back(context_.link(&schema["else"]));
  Json list = Json::array({Json{{"allOf", then}}, Json{{"allOf", otherwise}}});
  return made().ifs[&schema] = {context_.keep(std::move(list)), exact ? nullptr : kAnyElse};
}

const Json* SchemaCases::discriminating(const Json& schema) {
  const std::string name = has(schema, "discriminator")
                               ? text::string_or(schema["discriminator"], "propertyName", "")
                               : std::string();
  const char* keyword = has(schema, "oneOf") ? "oneOf" : "anyOf";
  if (name.empty() || !has(schema, keyword)) return nullptr;
  const auto [entry, fresh] = dependents_.try_emplace({&schema["discriminator"], name}, nullptr);
  if (!fresh) return entry->second;
  const bool named = std::ranges::all_of(schema[keyword], [&](const Json& member) {
    context_.work().add(4);
    const Json* behind = behind_references(&member, context_);
    return has(*behind, "properties") && context_.member((*behind)["properties"], name) != nullptr;
  });
  if (named) entry->second = context_.keep({{"required", Json::array({name})}});
  return entry->second;
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
  const auto known = made().negations.find(schema);
  if (known != made().negations.end()) {
    partial_ = partial_ || made().partly_negated.contains(schema);
    return known->second;
  }
  if (!made().negating.insert(schema).second || context_.work().spent()) return partial_ = true, nullptr;
  context_.work().add(4);
  context_.add_keywords(*schema);
  const bool before = std::exchange(partial_, false);
  const Json ways = negations_of(*schema);
  made().negating.erase(schema);
  // Objects with other names are missing in a closed one's negation. It is partial for all but
  // negated_beside, which adds those names that another closed object has.
  const bool closed = closes(*schema) && names_properties(*schema);
  if (closed && partial_) made().closed.erase(schema);
  partial_ = partial_ || closed;
  const bool unknown = partial_ && ways.empty();
  if (partial_) made().partly_negated.insert(schema);
  partial_ = partial_ || before;
  return made().negations[schema] = unknown ? nullptr : context_.keep(ways);
}

bool SchemaCases::is_partly_negated(const Json* schema) {
  schema = context_.same(behind_references(schema, context_));
  return made().partly_negated.contains(schema) || !made().negations.contains(schema);
}

// The part that is known.
Json SchemaCases::negations_of(const Json& schema) {
  Json ways = Json::array();
  if (schema == true) return ways;
  if (schema == false) return Json::array({true});
  if (!schema.is_object()) return partial_ = true, ways;
  for (const auto& [keyword, value] : *schema.get_ptr<const Json::object_t*>()) {
    static const std::set<std::string_view> kCombining = {
        "$ref", "$dynamicRef",       "$recursiveRef",    kLink,          "allOf", "anyOf", "oneOf", "not",
        "if",   "dependentRequired", "dependentSchemas", "dependencies", "enum",  "const", "type",  kDiffers};
    if (kCombining.contains(keyword))
      negate_combination(keyword, value, schema, ways);
    else if (type_of_keyword(keyword) != 0 && !is_free(keyword, value, schema))
      negate_keyword(keyword, value, schema, ways);
  }
  return ways;
}

void SchemaCases::negate_keyword(const std::string& keyword, const Json& value, const Json& schema,
                                 Json& ways) {
  if (keyword == "pattern" && value.is_string())
    return ways.push_back(text_with(kNotPattern, Json::array({value})));
  if (keyword == kNotPattern && value.is_array() && value.size() == 1)
    return ways.push_back(text_with("pattern", value[0]));
  const auto add = [&](bool exact) { partial_ = partial_ || !exact; };
  if (keyword.ends_with("inimum") || keyword.ends_with("aximum"))
    return add(negate_bound(keyword, value, schema, ways));
  const bool limit = keyword.starts_with("min") || keyword.starts_with("max");
  if (limit && is_count(keyword)) return add(negate_count(keyword, value, ways));
  const bool items = keyword == "items" && (value.is_object() || value.is_boolean());
  if (items && !(has(schema, "prefixItems") && !schema["prefixItems"].empty())) {
    if (const auto no = negated(&value)) ways.push_back({{"type", "array"}, {"contains", *no}});
  } else if (keyword == "contains" && !has(schema, "minContains")) {
    add(!has(schema, "maxContains"));
    if (const auto no = negated(&value)) ways.push_back({{"type", "array"}, {"items", *no}});
  } else if (keyword != "additionalProperties" || !closes(schema)) {
    negate_object(keyword, value, schema, ways);
  } else if (!names_properties(schema)) {
    ways.push_back({{"type", "object"}, {"minProperties", 1}});
  }
}

void SchemaCases::negate_object(const std::string& keyword, const Json& value, const Json& schema,
                                Json& ways) {
  const auto object = [&](Json more) {
    more["type"] = "object", more[kRewritten] = true;
    ways.push_back(std::move(more));
  };
  if ((keyword == "required" || keyword == kAbsent) && value.is_array()) {
    const char* opposite = keyword == "required" ? kAbsent : "required";
    for (const Json& name : value) object({{opposite, Json::array({name})}});
  } else if (keyword == "properties" && value.is_object()) {
    const bool closed = closes(schema), before = partial_;
    std::set<std::string> in_part;
    for (const auto& [name, property] : *value.get_ptr<const Json::object_t*>()) {
      partial_ = false;
      if (const auto no = negated(&property))
        object({{"properties", Json{{name, *no}}}, {"required", Json::array({name})}});
      if (partial_) in_part.insert(name);
    }
    partial_ = before || (!in_part.empty() && !closed);
    if (closed) made().closed[&schema] = std::move(in_part);
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
    const bool exact = negate_type(value, schema.value("nullable", Json()) == true, ways);
    partial_ = partial_ || !exact;
  } else if ((keyword == "enum" && value.is_array()) || keyword == "const") {
    const Json& values = keyword == "const" ? *context_.list_of(value) : value;
    ways.push_back({{kDiffers, values}});
    // Values beside these cannot be told apart from them.
    const auto vague = [](const Json& one) { return one.is_structured() && !one.empty(); };
    partial_ = partial_ || std::any_of(values.begin(), values.end(), vague);
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
    if (keyword == "anyOf") return;
    const bool paired = !loose_ && value.size() <= kMaxPaired;
    partial_ = partial_ || !paired;
    for (size_t i = 0; i < value.size() && paired; ++i)
      for (size_t j = 0; j < i; ++j)
        ways.push_back({{"allOf", Json::array({context_.link(&value[j]), context_.link(&value[i])})}});
  } else if (keyword.starts_with("dependen") && value.is_object()) {
    for (const auto& [name, unused] : *value.get_ptr<const Json::object_t*>()) {
      const auto list = dependent(value, name);
      if (list.ok() && list.value() != nullptr) add(negated(context_.keep(Json{{"anyOf", *list.value()}})));
    }
  } else if (keyword == "if" && (has(schema, "then") || has(schema, "else"))) {
    const Json* list = if_then_else(schema).list;
    if (list == nullptr) return void(partial_ = true);
    add(negated(context_.keep(Json{{"anyOf", *list}})));
  } else {
    const auto targets = context_.references(Json{{keyword, value}});
    if (!targets.ok()) return void(partial_ = true);
    for (const Json* target : targets.value()) {
      const Json* list = negation(target);
      if (list == nullptr) continue;
      for (const Json& way : *list) ways.push_back(context_.link(&way));
    }
  }
}

}  // namespace moesaic::grammar
