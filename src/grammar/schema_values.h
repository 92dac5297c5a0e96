// Checks whether a given value satisfies a schema, for the values of enums.
#pragma once

#include "grammar/schema_context.h"

namespace moesaic::grammar {

enum class Truth { kNo, kYes, kUnknown };

Truth satisfies(const Json& value, const Json& schema, SchemaContext& context);
// Combinations and references aside, and the enum that the value was taken from.
Truth own_keywords_hold(const Json& value, const Json& schema, SchemaContext& context,
                        const Json* its_enum = nullptr);

}  // namespace moesaic::grammar
