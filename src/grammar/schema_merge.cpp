#include "grammar/schema_merge.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "base/error.h"

namespace moesaic::grammar {
namespace {

constexpr int kMaxDepth = 64;  // of references and allOf inside each other

const std::unordered_set<std::string_view> kEnforced = {"type",
                                                        "enum",
                                                        "properties",
                                                        "required",
                                                        "additionalProperties",
                                                        "minProperties",
                                                        "items",
                                                        "prefixItems",
                                                        "minItems",
                                                        "maxItems",
                                                        "maxProperties",
                                                        "minLength",
                                                        "maxLength",
                                                        "pattern",
                                                        "format",
                                                        "minimum",
                                                        "maximum",
                                                        "exclusiveMinimum",
                                                        "nullable",
                                                        "anyOf",
                                                        "exclusiveMaximum",
                                                        "additionalItems"};
const std::unordered_set<std::string_view> kCombining = {"$ref", "allOf", "oneOf", "const"};
const std::unordered_set<std::string_view> kAnnotations = {"$schema",
                                                           "$id",
                                                           "$anchor",
                                                           "$comment",
                                                           "$defs",
                                                           "definitions",
                                                           "id",
                                                           "title",
                                                           "description",
                                                           "default",
                                                           "examples",
                                                           "example",
                                                           "deprecated",
                                                           "readOnly",
                                                           "writeOnly",
                                                           "contentEncoding",
                                                           "contentMediaType",
                                                           "discriminator",
                                                           "externalDocs",
                                                           "xml",
                                                           "$vocabulary"};
const std::unordered_set<std::string_view> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "dependencies",
                                                       "propertyNames",
                                                       "contains",
                                                       "minContains",
                                                       "maxContains",
                                                       "patternProperties",
                                                       "uniqueItems",
                                                       "multipleOf",
                                                       "unevaluatedItems",
                                                       "unevaluatedProperties",
                                                       "$dynamicRef",
                                                       "$recursiveRef"};

// Behind the #: %41 and, in pointers, ~0 and ~1 are left to JSON pointers.
std::string percent_decoded(const std::string& text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && isxdigit(text[i + 1]) && isxdigit(text[i + 2]);
    decoded += escape ? static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16)) : text[i];
    i += escape ? 2 : 0;
  }
  return decoded;
}

bool has(const Json& schema, const char* key) { return schema.contains(key); }

// The stricter of two limits, or nothing where they cannot be compared.
Result<Json> stricter(const Json& a, const Json& b, const std::string& keyword) {
  if (!a.is_number() || !b.is_number()) return invalid("{} must be a number", keyword);
  const bool lower = keyword.starts_with("max") || keyword == "exclusiveMaximum";
  return (a < b) == lower ? a : b;
}

Json list_of(const Json& value) { return value.is_array() ? value : Json::array({value}); }

// integer is a kind of number.
Json common_types(const Json& a, const Json& b) {
  Json types = Json::array();
  const auto in = [](const Json& list, const Json& type) {
    return std::find(list.begin(), list.end(), type) != list.end();
  };
  for (const Json& type : a)
    if (in(b, type) || (type == "integer" && in(b, "number"))) types.push_back(type);
  for (const Json& type : b)
    if (type == "integer" && in(a, "number") && !in(types, type)) types.push_back(type);
  return types;
}

Json common_values(const Json& a, const Json& b) {
  Json values = Json::array();
  for (const Json& value : a)
    if (std::find(b.begin(), b.end(), value) != b.end()) values.push_back(value);
  return values;
}

Json joined(const Json& a, const Json& b) {
  Json all = a;
  for (const Json& value : b)
    if (std::find(all.begin(), all.end(), value) == all.end()) all.push_back(value);
  return all;
}

Json both(const Json& a, const Json& b) { return a == b ? a : Json{{"allOf", Json::array({a, b})}}; }

// Every pair; each is a schema again.
Result<Json> pairs(const Json& a, const Json& b) {
  if (a.size() * b.size() > SchemaMerger::kMaxAlternatives)
    return invalid("anyOf and oneOf multiply to over {} alternatives", SchemaMerger::kMaxAlternatives);
  Json all = Json::array();
  for (const Json& x : a)
    for (const Json& y : b) all.push_back(both(x, y));
  return all;
}

// What a schema says of a property: its own entry, else additionalProperties.
const Json* schema_of(const Json& schema, const std::string& property) {
  if (has(schema, "properties") && schema["properties"].contains(property))
    return &schema["properties"][property];
  return has(schema, "additionalProperties") ? &schema["additionalProperties"] : nullptr;
}

Json merged_properties(const Json& a, const Json& b) {
  Json properties = Json::object();
  for (const Json* side : {&a, &b}) {
    if (!has(*side, "properties")) continue;
    for (const auto& [name, unused] : (*side)["properties"].items()) {
      const Json *x = schema_of(a, name), *y = schema_of(b, name);
      properties[name] = x == nullptr ? *y : y == nullptr ? *x : both(*x, *y);
    }
  }
  return properties;
}

Result<Json> merged_keyword(const std::string& keyword, const Json& a, const Json& b) {
  static const std::unordered_set<std::string_view> kLimits = {
      "minimum",   "maximum",  "exclusiveMinimum", "exclusiveMaximum", "minLength",
      "maxLength", "minItems", "maxItems",         "minProperties",    "maxProperties"};
  if (a == b) return a;
  if (kLimits.contains(keyword)) return stricter(a, b, keyword);
  if (keyword == "type") return common_types(list_of(a), list_of(b));
  if (keyword == "enum") return common_values(a, b);
  if (keyword == "required") return joined(a, b);
  if (keyword == "anyOf") return pairs(a, b);
  if (keyword == "additionalProperties" || (keyword == "items" && !a.is_array() && !b.is_array()))
    return both(a, b);
  return invalid("two different {} that must both hold are not supported", keyword);
}

Status check_shape(const std::string& keyword, const Json& value) {
  const bool list =
      keyword == "enum" || keyword == "required" || keyword == "anyOf" || keyword == "prefixItems";
  if (list && !value.is_array()) return invalid("{} must be a list", keyword);
  if (keyword == "properties" && !value.is_object()) return invalid("properties must be an object");
  const bool schema = value.is_object() || value.is_boolean();
  if (keyword == "additionalProperties" && !schema) return invalid("{} must be a schema", keyword);
  if (keyword == "items" && !schema && !value.is_array()) return invalid("items must be a schema");
  return {};
}

}  // namespace

Result<Json> merge(const Json& a, const Json& b) {
  Json merged = a;
  for (const auto& [keyword, value] : b.items()) {
    if (!has(a, keyword.c_str())) {
      merged[keyword] = value;
    } else if (keyword != "properties") {
      ASSIGN_OR_RETURN(merged[keyword], merged_keyword(keyword, a[keyword], value));
    }
  }
  if (has(merged, "properties")) merged["properties"] = merged_properties(a, b);
  return merged;
}

Result<const Json*> SchemaMerger::resolve(const std::string& reference) const {
  if (!reference.starts_with('#'))
    return invalid("$ref \"{}\" leaves the schema: only references that begin with # are supported",
                   reference);
  const std::string pointer = percent_decoded(reference.substr(1));
  try {
    const Json::json_pointer at(pointer);
    if (root_.contains(at)) return &root_.at(at);
  } catch (const Json::exception&) {  // not a pointer
  }
  return invalid("$ref \"{}\" points to nothing", reference);
}

Result<Json> SchemaMerger::own_keywords(const Json& schema) {
  Json own = Json::object();
  for (const auto& [keyword, value] : schema.items()) {
    const bool harmless = keyword == "uniqueItems" && value == false;
    if (kRefused.contains(keyword) && !harmless) return invalid("{} is not supported", keyword);
    if (kEnforced.contains(keyword)) {
      RETURN_IF_ERROR(check_shape(keyword, value));
      own[keyword] = value;
    } else if (!harmless && !kCombining.contains(keyword) && !kAnnotations.contains(keyword)) {
      note("the unknown keyword " + keyword + " is ignored");
    }
  }
  return own;
}

Result<Json> SchemaMerger::flatten(const Json& schema, int depth) {
  if (depth > kMaxDepth)
    return invalid("$ref and allOf refer to each other without end, or {} deep", kMaxDepth);
  work_ += schema.dump().size();
  if (work_ > kMaxWork) return invalid("its references and combinations multiply to over {} bytes", kMaxWork);
  if (schema.is_boolean()) return schema == true ? Json::object() : Json{{"enum", Json::array()}};
  if (!schema.is_object()) return invalid("a schema must be an object, true or false");
  ASSIGN_OR_RETURN(Json flat, own_keywords(schema));
  const auto add = [&](const Json& more) -> Status {
    ASSIGN_OR_RETURN(flat, merge(flat, more));
    return {};
  };
  if (has(schema, "const")) RETURN_IF_ERROR(add(Json{{"enum", Json::array({schema["const"]})}}));
  if (has(schema, "oneOf")) {
    note("oneOf is taken as anyOf: that only one member holds is not enforced");
    RETURN_IF_ERROR(check_shape("anyOf", schema["oneOf"]));
    RETURN_IF_ERROR(add(Json{{"anyOf", schema["oneOf"]}}));
  }
  if (has(schema, "$ref")) {
    if (!schema["$ref"].is_string()) return invalid("$ref must be a string");
    ASSIGN_OR_RETURN(const Json* target, resolve(schema["$ref"].get<std::string>()));
    ASSIGN_OR_RETURN(const Json more, flatten(*target, depth + 1));
    RETURN_IF_ERROR(add(more));
  }
  if (has(schema, "allOf") && !schema["allOf"].is_array()) return invalid("allOf must be a list");
  for (const Json& member : schema.value("allOf", Json::array())) {
    ASSIGN_OR_RETURN(const Json more, flatten(member, depth + 1));
    RETURN_IF_ERROR(add(more));
  }
  return flat;
}

}  // namespace moesaic::grammar
