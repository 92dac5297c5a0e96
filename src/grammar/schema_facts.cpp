#include "grammar/schema_facts.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"
#include "grammar/pattern.h"

namespace moesaic::grammar {
namespace {

struct Spoken {
  std::string_view keyword;
  unsigned type;
};
constexpr Spoken kSpoken[] = {{"properties", kObject},
                              {"required", kObject},
                              {"additionalProperties", kObject},
                              {"patternProperties", kObject},
                              {"propertyNames", kObject},
                              {"unevaluatedProperties", kObject},
                              {"minProperties", kObject},
                              {"maxProperties", kObject},
                              {kAbsent, kObject},
                              {"items", kArray},
                              {"prefixItems", kArray},
                              {"additionalItems", kArray},
                              {"unevaluatedItems", kArray},
                              {"minItems", kArray},
                              {"maxItems", kArray},
                              {"contains", kArray},
                              {"uniqueItems", kArray},
                              {"minLength", kString},
                              {"maxLength", kString},
                              {"pattern", kString},
                              {"format", kString},
                              {kNotPattern, kString},
                              {"minimum", kNumber},
                              {"maximum", kNumber},
                              {"exclusiveMinimum", kNumber},
                              {"exclusiveMaximum", kNumber},
                              {"multipleOf", kNumber}};

constexpr Spoken kTypeNames[] = {{"object", kObject},   {"array", kArray},      {"string", kString},
                                 {"integer", kInteger}, {"number", kNumber},    {"boolean", kBoolean},
                                 {"null", kNull},       {kFractions, kFraction}};

unsigned find(std::span<const Spoken> list, std::string_view name) {
  const auto at = std::ranges::find(list, name, &Spoken::keyword);
  return at == list.end() ? 0 : at->type;
}

class Collector {
 public:
  explicit Collector(SchemaContext& context) : context_(context) {}

  Result<Facts> collect(const Schemas& schemas) {
    unsigned spoken = 0, explicitly = kAllTypes;
    bool typed = false, nullable = true;
    for (const Json* schema : schemas) {
      nullable = nullable && schema->value("nullable", Json(false)) == true;
      for (const auto& [keyword, value] : *schema->get_ptr<const Json::object_t*>()) {
        context_.work().add(1);
        if (context_.work().spent()) return invalid("{}", kTooMuchWork);
        if (keyword == "type") {
          ASSIGN_OR_RETURN(unsigned types, types_of(value));
          if (schema->value("nullable", Json(false)) == true) types |= kNull;
          explicitly &= types, typed = true;
        }
        spoken |= type_of_keyword(keyword);
        RETURN_IF_ERROR(add(keyword, value, *schema));
      }
    }
    if (!typed && nullable && !schemas.empty()) spoken |= spoken == 0 ? 0u : unsigned{kNull};
    const bool any = spoken == 0 || !facts_.enums.empty();
    facts_.types = typed ? explicitly : any ? unsigned{kAllTypes} : spoken;
    facts_.typed = typed;
    return std::move(facts_);
  }

 private:
  Status add(const std::string& keyword, const Json& value, const Json& schema) {
    if (keyword == "minLength" || keyword == "maxLength") return limit(keyword, value, facts_.length);
    if (keyword == "minItems" || keyword == "maxItems") return limit(keyword, value, facts_.items);
    if (keyword == "minProperties" || keyword == "maxProperties")
      return limit(keyword, value, facts_.members);
    if (keyword.ends_with("inimum") || keyword.ends_with("aximum")) return bound(keyword, value, schema);
    if (keyword == "pattern") return text(keyword, value, facts_.patterns);
    if (keyword == "format") return format(value);
    if (keyword == "multipleOf") return factor(value);
    if (keyword == "required") return names(keyword, value, facts_.required);
    if (keyword == kAbsent) return names(keyword, value, facts_.absent);
    if (keyword == kNotPattern) return names(keyword, value, facts_.not_patterns);
    if (keyword == "const") facts_.enums.push_back(context_.list_of(value));
    if (keyword == "enum") return list(keyword, value, facts_.enums);
    if (keyword == kDiffers) {
      RETURN_IF_ERROR(list(keyword, value, facts_.differs));
      facts_.differs.pop_back();
      for (const Json& one : value) facts_.differs.push_back(&one);
    }
    return nested(keyword, value, schema);
  }

  Status nested(const std::string& keyword, const Json& value, const Json& schema) {
    const bool is_schema = value.is_object() || value.is_boolean();
    const auto once = [&](std::vector<const Json*>& list, const Json* what) {
      if (list.empty() || list.back() != what) list.push_back(what);
    };
    if (keyword == "properties" || keyword == "patternProperties") {
      if (!value.is_object()) return invalid("{} must be an object", keyword);
      once(facts_.objects, &schema);
    } else if (keyword == "additionalProperties" || keyword == "unevaluatedProperties") {
      if (!is_schema) return invalid("{} must be a schema", keyword);
      once(facts_.objects, &schema);
    } else if (keyword == "items" || keyword == "additionalItems" || keyword == "unevaluatedItems") {
      if (!is_schema && !(keyword == "items" && value.is_array()))
        return invalid("{} must be a schema", keyword);
      once(facts_.arrays, &schema);
    } else if (keyword == "prefixItems") {
      if (!value.is_array()) return invalid("prefixItems must be a list");
      once(facts_.arrays, &schema);
    } else if (keyword == "contains") {
      facts_.contains.push_back(&schema);
    } else if (keyword == "propertyNames") {
      facts_.names.push_back(&value);
    } else if (keyword == "uniqueItems" && value == true) {
      facts_.unique.push_back(&schema);
    }
    return {};
  }

  Status list(const std::string& keyword, const Json& value, std::vector<const Json*>& to) {
    if (!value.is_array()) return invalid("{} must be a list", keyword);
    context_.work().add(value.size());
    to.push_back(&value);
    return {};
  }
  Status text(const std::string& keyword, const Json& value, std::vector<std::string>& to) {
    if (!value.is_string()) return invalid("{} must be a string", keyword);
    const auto& string = value.get_ref<const std::string&>();
    context_.work().add(to.size() + string.size() / SchemaContext::kBytesOfStep);
    if (std::find(to.begin(), to.end(), string) == to.end()) to.push_back(string);
    return {};
  }
  Status names(const std::string& keyword, const Json& value, std::vector<std::string>& to) {
    if (keyword == "required" && value.is_boolean()) return {};  // draft 3: of the property itself
    if (!value.is_array()) return invalid("{} must be a list", keyword);
    context_.work().add(value.size());
    for (const Json& name : value) {
      if (!name.is_string()) return invalid("{} must be a list of strings", keyword);
      to.push_back(name.get<std::string>());
      context_.work().add(to.back().size() / SchemaContext::kBytesOfStep);
    }
    return {};
  }
  Status format(const Json& value) {
    if (!value.is_string()) return invalid("format must be a string");
    const auto name = value.get<std::string>();
    const std::string_view pattern = pattern_of_format(name);
    if (pattern.empty()) return context_.note(ignored_format(name)), Status();
    return text("format", std::string(pattern), facts_.patterns);
  }
  Status factor(const Json& value) {
    if (!value.is_number() || value.get<double>() <= 0) return invalid("multipleOf must be a number above 0");
    context_.work().add(facts_.factors.size());
    if (std::find(facts_.factors.begin(), facts_.factors.end(), value) == facts_.factors.end())
      facts_.factors.push_back(value);
    return {};
  }

  Status limit(const std::string& keyword, const Json& value, Counts& counts) {
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(number >= 0) || number != std::floor(number))
      return invalid("{} must be a number of 0 or more, without a fraction", keyword);
    // A number that is too large to count is unlimited, or, for a minimum, never reached.
    const uint32_t n = number >= kUnlimited ? kUnlimited : static_cast<uint32_t>(number);
    if (keyword[1] == 'i')
      counts.min = std::max(counts.min, n);
    else
      counts.max = std::min(counts.max, n);
    return {};
  }

  // Older drafts have a boolean beside minimum.
  Status bound(const std::string& keyword, const Json& value, const Json& schema) {
    const bool low = keyword.ends_with("inimum"), exclusive = keyword.starts_with("exclusive");
    if (exclusive && value.is_boolean()) return {};
    if (!value.is_number()) return invalid("{} must be a number", keyword);
    const char* flag = low ? "exclusiveMinimum" : "exclusiveMaximum";
    const Bound made{decimal_of(value), !exclusive && schema.value(flag, Json()) != true};
    auto& bound = low ? facts_.range.low : facts_.range.high;
    const int order = bound ? compare(made.value, bound->value) : 0;
    if (!bound || (low ? order > 0 : order < 0) || (order == 0 && !made.included)) bound = made;
    return {};
  }

  SchemaContext& context_;
  Facts facts_;
};

// Is the property named by this schema, or by one of its patterns? Adds what is said of it.
Result<bool> add_named(const Json& schema, const std::string& name, SchemaContext& context, Schemas& all) {
  bool named = false;
  context.add_keywords(schema);
  if (has(schema, "properties")) {
    const Json* own = context.member(schema["properties"], name);
    if (own != nullptr) all.push_back(own), named = true;
  }
  if (!has(schema, "patternProperties")) return named;
  for (const auto& [pattern, own] : *schema["patternProperties"].get_ptr<const Json::object_t*>()) {
    auto found = context.finds(pattern, name);
    if (!found.ok()) return invalid("patternProperties: {}", found.status().message());
    if (found.value()) all.push_back(&own), named = true;
  }
  return named;
}

}  // namespace

Decimal decimal_of(const Json& value) {
  return value.is_number_unsigned()  ? decimal_of(value.get<uint64_t>())
         : value.is_number_integer() ? decimal_of(value.get<int64_t>())
                                     : decimal_of(value.get<double>());
}

std::string ignored_format(const std::string& format) { return "the format \"" + format + "\" is ignored"; }

unsigned type_of_keyword(std::string_view keyword) { return find(kSpoken, keyword); }

unsigned type_of_value(const Json& value) {
  if (value.is_number_float())
    return value.get<double>() == std::floor(value.get<double>()) ? kInteger : kFraction;
  if (value.is_number()) return kInteger;
  return find(kTypeNames, value.type_name());
}

Result<unsigned> types_of(const Json& type) {
  unsigned types = 0;
  for (const Json& one : type.is_array() ? type : Json::array({type})) {
    const unsigned found = one.is_string() ? find(kTypeNames, one.get_ref<const std::string&>()) : 0;
    const bool any = one == "any";  // draft 3
    if (found == 0 && !any) return invalid("type {} is none of JSON Schema's", one.dump());
    types |= any ? unsigned{kAllTypes} : found;
  }
  return types;
}

Result<Facts> facts_of(const Schemas& schemas, SchemaContext& context) {
  return Collector(context).collect(schemas);
}

bool empty(const NumberRange& range) {
  if (!range.low || !range.high) return false;
  const int order = compare(range.low->value, range.high->value);
  return order > 0 || (order == 0 && !(range.low->included && range.high->included));
}

namespace {

// unevaluatedProperties of those whose other parts say nothing of a property; `says` is asked for each part.
template <typename Says>
void add_unevaluated(const Facts& facts, SchemaContext& context, const Says& says, Schemas& all) {
  for (const Json* schema : facts.objects) {
    context.add_keywords(*schema);
    if (context.work().spent() || !has(*schema, "unevaluatedProperties")) continue;
    const auto& reach = context.reach(schema);
    const bool evaluated = std::any_of(facts.objects.begin(), facts.objects.end(), [&](const Json* part) {
      context.work().add(1);
      return reach.contains(part) && !has(*part, kRewritten) &&
             (has(*part, "additionalProperties") || says(part));
    });
    if (!evaluated) all.push_back(&(*schema)["unevaluatedProperties"]);
  }
}

}  // namespace

Result<Schemas> schemas_of_property(const Facts& facts, const std::string& name, SchemaContext& context) {
  Schemas all;
  std::vector<const Json*> naming;
  for (const Json* schema : facts.objects) {
    context.work().add(1);
    if (context.work().spent()) return invalid("{}", kTooMuchWork);
    ASSIGN_OR_RETURN(const bool named, add_named(*schema, name, context, all));
    if (named) naming.push_back(schema);
    if (!named && has(*schema, "additionalProperties")) all.push_back(&(*schema)["additionalProperties"]);
  }
  const auto says = [&](const Json* part) {
    context.work().add(naming.size());
    return std::find(naming.begin(), naming.end(), part) != naming.end();
  };
  add_unevaluated(facts, context, says, all);
  return all;
}

Schemas schemas_of_others(const Facts& facts, const std::vector<std::string>& matched,
                          SchemaContext& context) {
  const auto pattern_of = [](const Json* schema, const std::string& pattern) -> const Json* {
    if (!has(*schema, "patternProperties") || !(*schema)["patternProperties"].contains(pattern))
      return nullptr;
    return &(*schema)["patternProperties"][pattern];
  };
  Schemas all;
  for (const Json* schema : facts.objects) {
    bool named = false;
    context.add_keywords(*schema);
    context.work().add(1 + 4 * matched.size());
    if (context.work().spent()) break;
    for (const std::string& pattern : matched) {
      const Json* own = pattern_of(schema, pattern);
      if (own != nullptr) all.push_back(own), named = true;
    }
    if (!named && has(*schema, "additionalProperties")) all.push_back(&(*schema)["additionalProperties"]);
  }
  const auto says = [&](const Json* part) {
    context.work().add(4 * matched.size());
    return std::any_of(matched.begin(), matched.end(),
                       [&](const auto& p) { return pattern_of(part, p) != nullptr; });
  };
  add_unevaluated(facts, context, says, all);
  return all;
}

bool closed(const Facts& facts) {
  bool names = false;
  for (const Json* schema : facts.objects) {
    if (has(*schema, kRewritten)) continue;
    if (has(*schema, "additionalProperties") || has(*schema, "unevaluatedProperties")) return false;
    names = names || (has(*schema, "properties") && !(*schema)["properties"].empty()) ||
            (has(*schema, "patternProperties") && !(*schema)["patternProperties"].empty());
  }
  return names;
}

}  // namespace moesaic::grammar
