#include "grammar/schema_values.h"

#include <algorithm>
#include <cmath>

#include "grammar/pattern.h"
#include "grammar/schema_facts.h"

namespace moesaic::grammar {
namespace {

constexpr int kMaxValueDepth = 64;

Truth truth(bool value) { return value ? Truth::kYes : Truth::kNo; }
Truth opposite(Truth t) { return t == Truth::kUnknown ? t : truth(t == Truth::kNo); }
Truth both(Truth a, Truth b) {
  if (a == Truth::kNo || b == Truth::kNo) return Truth::kNo;
  return a == Truth::kUnknown ? a : b;
}
Truth either(Truth a, Truth b) { return opposite(both(opposite(a), opposite(b))); }

class Checker {
 public:
  explicit Checker(SchemaContext& context, const Json* its_enum = nullptr)
      : context_(context), its_enum_(its_enum) {}

  Truth whole(const Json& value, const Json& schema, int depth) {
    context_.work().add(1);
    context_.add_keywords(schema);
    if (schema.is_boolean()) return truth(schema.get<bool>());
    if (!schema.is_object() || depth > kMaxValueDepth || context_.work().spent()) return Truth::kUnknown;
    Truth all = own(value, schema, depth);
    const auto targets = context_.references(schema);
    if (!targets.ok()) return Truth::kUnknown;
    for (const Json* target : targets.value()) all = both(all, whole(value, *target, depth + 1));
    for (const auto& [keyword, part] : *schema.get_ptr<const Json::object_t*>()) {
      if (all == Truth::kNo) return all;
      all = both(all, combination(keyword, part, value, schema, depth));
    }
    return all;
  }

  Truth own(const Json& value, const Json& schema, int depth) {
    const unsigned type = type_of_value(value);
    Truth all = Truth::kYes;
    for (const auto& [keyword, part] : *schema.get_ptr<const Json::object_t*>()) {
      context_.work().add(1);
      if (all == Truth::kNo) return all;
      if (context_.work().spent()) return Truth::kUnknown;
      const unsigned spoken = type_of_keyword(keyword);
      if (spoken == 0)
        all = both(all, of_any_type(keyword, part, value, schema, depth));
      else if ((spoken & type) != 0)
        all = both(all, type == kObject   ? object(keyword, part, value, schema, depth)
                        : type == kArray  ? array(keyword, part, value, schema, depth)
                        : type == kString ? string(keyword, part, value)
                                          : number(keyword, part, value, schema));
    }
    return all;
  }

 private:
  Truth of_any_type(const std::string& keyword, const Json& part, const Json& value, const Json& schema,
                    int depth) {
    const auto listed = [&] {
      if (&part == its_enum_ && depth == 0) return true;  // a reference may lead here from inside the value
      return context_.lists(part, value);
    };
    if (keyword == "const") {
      context_.work().add(context_.steps_of(value));
      return truth(part == value);
    }
    if (keyword == "enum") return truth(listed());
    if (keyword == kDiffers) return truth(!listed());
    if (keyword != "type") return Truth::kYes;
    const auto types = types_of(part);
    if (!types.ok()) return Truth::kUnknown;
    const bool null = value.is_null() && schema.value("nullable", Json()) == true;
    return truth(null || (types.value() & type_of_value(value)) != 0);
  }

  static Truth counted(const std::string& keyword, const Json& limit, size_t count) {
    if (!limit.is_number()) return Truth::kUnknown;
    const auto n = static_cast<double>(count);
    return truth(keyword[1] == 'i' ? n >= limit.get<double>() : n <= limit.get<double>());
  }

  Truth found(const std::string& pattern, const std::string& text) {
    const auto finds = context_.finds(pattern, text);
    return finds.ok() ? truth(finds.value()) : Truth::kUnknown;
  }

  Truth string(const std::string& keyword, const Json& part, const Json& value) {
    const auto& text = value.get_ref<const std::string&>();
    context_.work().add(text.size() / SchemaContext::kBytesOfStep);
    if (keyword.ends_with("Length")) return counted(keyword, part, code_points(text).size());
    if (keyword == kNotPattern) {
      Truth none = Truth::kYes;
      for (const Json& pattern : part)
        none = both(none, pattern.is_string() ? opposite(found(pattern, text)) : Truth::kUnknown);
      return none;
    }
    if (!part.is_string()) return Truth::kUnknown;
    if (keyword == "pattern") return found(part, text);
    const std::string_view pattern = pattern_of_format(part.get_ref<const std::string&>());
    return pattern.empty() ? Truth::kYes : found(std::string(pattern), text);
  }

  static Truth number(const std::string& keyword, const Json& part, const Json& value, const Json& schema) {
    if (part.is_boolean()) return Truth::kYes;
    if (!part.is_number()) return Truth::kUnknown;
    const auto exclusive = [&](const char* flag) { return schema.value(flag, Json()) == true; };
    if (keyword == "minimum") return truth(exclusive("exclusiveMinimum") ? value > part : value >= part);
    if (keyword == "maximum") return truth(exclusive("exclusiveMaximum") ? value < part : value <= part);
    if (keyword == "exclusiveMinimum") return truth(value > part);
    if (keyword == "exclusiveMaximum") return truth(value < part);
    const double quotient = value.get<double>() / part.get<double>();
    return truth(std::fabs(quotient - std::round(quotient)) < 1e-9 * std::max(1.0, std::fabs(quotient)));
  }

  Truth array(const std::string& keyword, const Json& part, const Json& value, const Json& schema,
              int depth) {
    if (keyword == "minItems" || keyword == "maxItems") return counted(keyword, part, value.size());
    if (keyword == "uniqueItems") return unique(part, value);
    if (keyword == "contains") return contains(part, value, schema, depth);
    if (keyword == "unevaluatedItems") return Truth::kUnknown;
    const bool list = keyword == "prefixItems" || (keyword == "items" && part.is_array());
    if (list) return prefix(part, value, depth);
    const char* before = keyword == "items" ? "prefixItems" : "items";
    if (keyword == "additionalItems" && !(has(schema, before) && schema[before].is_array()))
      return Truth::kYes;
    Truth all = Truth::kYes;
    for (size_t i = has(schema, before) ? schema[before].size() : 0; i < value.size(); ++i)
      all = both(all, whole(value[i], part, depth + 1));
    return all;
  }
  Truth prefix(const Json& parts, const Json& value, int depth) {
    if (!parts.is_array()) return Truth::kUnknown;
    Truth all = Truth::kYes;
    for (size_t i = 0; i < value.size() && i < parts.size(); ++i)
      all = both(all, whole(value[i], parts[i], depth + 1));
    return all;
  }
  Truth unique(const Json& part, const Json& value) {
    context_.work().add(value.size() * context_.steps_of(value));
    if (part != true) return Truth::kYes;
    for (size_t i = 0; i < value.size() && !context_.work().spent(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (value[i] == value[j]) return Truth::kNo;
    return Truth::kYes;
  }
  Truth contains(const Json& part, const Json& value, const Json& schema, int depth) {
    size_t yes = 0;
    for (const Json& item : value) {
      const Truth t = whole(item, part, depth + 1);
      if (t == Truth::kUnknown) return t;
      yes += t == Truth::kYes;
    }
    const Json min = schema.value("minContains", Json(1)), max = schema.value("maxContains", Json(yes));
    if (!min.is_number() || !max.is_number()) return Truth::kUnknown;
    return truth(min <= Json(yes) && Json(yes) <= max);
  }

  Truth object(const std::string& keyword, const Json& part, const Json& value, const Json& schema,
               int depth) {
    if (keyword == "minProperties" || keyword == "maxProperties") return counted(keyword, part, value.size());
    if (keyword == "required" || keyword == kAbsent) return names(keyword, part, value);
    if (keyword == "unevaluatedProperties") return Truth::kUnknown;
    Truth all = Truth::kYes;
    for (const auto& [name, member] : *value.get_ptr<const Json::object_t*>()) {
      context_.work().add(1);
      if (context_.work().spent()) return Truth::kUnknown;
      if (keyword == "propertyNames") all = both(all, whole(Json(name), part, depth + 1));
      if (keyword == "properties") {
        const Json* own = context_.member(part, name);
        if (own != nullptr) all = both(all, whole(member, *own, depth + 1));
      }
      if (keyword == "patternProperties") all = both(all, matching(name, member, part, depth));
      if (keyword == "additionalProperties") all = both(all, additional(name, member, part, schema, depth));
    }
    return all;
  }
  Truth names(const std::string& keyword, const Json& part, const Json& value) {
    if (!part.is_array()) return Truth::kUnknown;
    context_.work().add(2 * part.size());
    return truth(std::all_of(part.begin(), part.end(), [&](const Json& name) {
      return name.is_string() && (context_.member(value, name.get_ref<const std::string&>()) != nullptr) ==
                                     (keyword == "required");
    }));
  }
  Truth matching(const std::string& name, const Json& member, const Json& patterns, int depth) {
    if (!patterns.is_object()) return Truth::kUnknown;
    Truth all = Truth::kYes;
    for (const auto& [pattern, schema] : *patterns.get_ptr<const Json::object_t*>()) {
      const Truth here = found(pattern, name);
      all = both(all, either(opposite(here), whole(member, schema, depth + 1)));
    }
    return all;
  }
  Truth additional(const std::string& name, const Json& member, const Json& part, const Json& schema,
                   int depth) {
    context_.add_keywords(schema);
    if (has(schema, "properties") && context_.member(schema["properties"], name) != nullptr)
      return Truth::kYes;
    Truth named = Truth::kNo;
    if (has(schema, "patternProperties")) {
      const Json& patterns = schema["patternProperties"];
      if (!patterns.is_object()) return Truth::kUnknown;
      for (const auto& [pattern, unused] : *patterns.get_ptr<const Json::object_t*>())
        named = either(named, found(pattern, name));
    }
    return either(named, whole(member, part, depth + 1));
  }

  Truth combination(const std::string& keyword, const Json& part, const Json& value, const Json& schema,
                    int depth) {
    if (keyword == "not") return opposite(whole(value, part, depth + 1));
    const bool dependent = keyword.starts_with("dependen");
    if (dependent && value.is_object()) return dependents(part, value, depth);
    if (keyword == "if") {
      const Truth condition = whole(value, part, depth + 1);
      const auto branch = [&](const char* key) {
        return has(schema, key) ? whole(value, schema[key], depth + 1) : Truth::kYes;
      };
      return both(either(opposite(condition), branch("then")), either(condition, branch("else")));
    }
    const bool lists = keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf";
    return lists ? list(keyword, part, value, depth) : Truth::kYes;
  }
  Truth list(const std::string& keyword, const Json& members, const Json& value, int depth) {
    if (!members.is_array()) return Truth::kUnknown;
    size_t yes = 0, no = 0;
    for (const Json& member : members) {
      const Truth t = whole(value, member, depth + 1);
      yes += t == Truth::kYes, no += t == Truth::kNo;
    }
    if (keyword == "allOf")
      return no > 0 ? Truth::kNo : yes == members.size() ? Truth::kYes : Truth::kUnknown;
    if (keyword == "anyOf")
      return yes > 0 ? Truth::kYes : no == members.size() ? Truth::kNo : Truth::kUnknown;
    return yes + no < members.size() ? Truth::kUnknown : truth(yes == 1);
  }
  Truth dependents(const Json& needs, const Json& value, int depth) {
    if (!needs.is_object()) return Truth::kUnknown;
    Truth all = Truth::kYes;
    for (const auto& [name, need] : *needs.get_ptr<const Json::object_t*>()) {
      context_.work().add(1);
      if (context_.member(value, name) == nullptr) continue;
      all = both(all, need.is_array() ? names("required", need, value) : whole(value, need, depth + 1));
    }
    return all;
  }

  SchemaContext& context_;
  const Json* its_enum_;
};

}  // namespace

Truth satisfies(const Json& value, const Json& schema, SchemaContext& context) {
  return Checker(context).whole(value, schema, 0);
}

Truth own_keywords_hold(const Json& value, const Json& schema, SchemaContext& context, const Json* its_enum) {
  return Checker(context, its_enum).own(value, schema, 0);
}

}  // namespace moesaic::grammar
