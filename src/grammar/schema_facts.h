// What schemas that hold together say of a value, combinations aside: what the grammar is made of.
#pragma once

#include <optional>
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

// Which keyword speaks of which type; 0 for others.
unsigned type_of_keyword(std::string_view keyword);
// Of a schema's `type`.
Result<unsigned> types_of(const Json& type);
unsigned type_of_value(const Json& value);

// Of schemas without regard to their combinations. Fails on keywords of the wrong shape.
Result<Facts> facts_of(const Schemas& schemas, SchemaContext& context);
bool empty(const NumberRange& range);

// What a property of this name must be.
Result<Schemas> schemas_of_property(const Facts& facts, const std::string& name, SchemaContext& context);
// What properties must be that match these patterns of patternProperties and are not named.
Schemas schemas_of_others(const Facts& facts, const std::vector<std::string>& matched,
                          SchemaContext& context);
// Where nothing is said of other properties, none are written beside named ones: what is not named is rarely
// meant.
bool closed(const Facts& facts);

}  // namespace moesaic::grammar
