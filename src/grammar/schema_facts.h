// The facts that schemas which hold together state of a value, combinations aside. The grammar is made of
// them.
#pragma once

#include <string>
#include <vector>

#include "grammar/numbers.h"
#include "grammar/schema_context.h"

namespace moesaic::grammar {

enum Types : unsigned {
  kObject = 1,
  kArray = 2,
  kString = 4,
  kInteger = 8,
  kFraction = 16,  // a number that is no integer
  kBoolean = 32,
  kNull = 64,
  kNumber = kInteger | kFraction,
  kAllTypes = 127
};

struct Counts {
  uint32_t min = 0, max = kUnlimited;
  bool empty() const { return min > max; }
  bool limits() const { return min > 0 || max != kUnlimited; }
  Counts without(uint32_t n) const {
    return {min > n ? min - n : 0, max == kUnlimited ? max : max > n ? max - n : 0};
  }
};

struct Facts {
  unsigned types = kAllTypes;
  bool typed = false;                // `type` says so, not the other keywords
  std::vector<const Json*> enums;    // lists, each of which has the value
  std::vector<const Json*> differs;  // values that it is not
  // Strings.
  Counts length;
  std::vector<std::string> patterns, not_patterns;  // formats' patterns too
  // Numbers.
  NumberRange range;
  std::vector<Json> factors;  // multipleOf
  // Arrays and objects: the schemas with such keywords.
  std::vector<const Json*> arrays, objects, contains, unique;
  Counts items, members;
  std::vector<std::string> required, absent;
  std::vector<const Json*> names;  // propertyNames
};

// The type of which a keyword speaks; 0 for others.
unsigned type_of_keyword(std::string_view keyword);
// The note on a format that is not known.
std::string ignored_format(const std::string& format);
// The types that a schema's `type` names.
Result<unsigned> types_of(const Json& type);
unsigned type_of_value(const Json& value);

// The facts of schemas without regard to their combinations. Fails on keywords of the wrong shape.
Result<Facts> facts_of(const Schemas& schemas, SchemaContext& context);
bool empty(const NumberRange& range);
// `value` is a number.
Decimal decimal_of(const Json& value);

// The schemas that a property of this name must satisfy.
Result<Schemas> schemas_of_property(const Facts& facts, const std::string& name, SchemaContext& context);
// The schemas of properties that match these patterns of patternProperties and are not named.
Schemas schemas_of_others(const Facts& facts, const std::vector<std::string>& matched,
                          SchemaContext& context);
// True where no property is written beside the named ones. That is so where the schema says nothing of
// others, which are rarely meant.
bool closed(const Facts& facts);

}  // namespace moesaic::grammar
