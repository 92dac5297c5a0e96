// JSON from files and requests that nobody vouches for.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/whole_json.h"
#include "moesaic/conversation.h"
#include "moesaic/status.h"

namespace moesaic::text {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order of members; finds them by a scan
using moesaic::member, moesaic::string_or;

inline constexpr int kMaxJsonDepth = 64;
// Its values take up to 50 times a text's bytes, so the bytes alone are no limit. Lists of token ids are
// long: 16 prompts of 131,072.
inline constexpr JsonLimits kOrderedLimits{.depth = kMaxJsonDepth,
                                           .containers = 100'000,
                                           .strings = 500'000,
                                           .values = 3'000'000,
                                           .members = 10'000,
                                           .comparisons = kMaxMemberComparisons};

// Refuses nesting deeper than kMaxJsonDepth, more than kMostFileValues (base/whole_json.h) and anything that
// is not JSON. name stands in the message. An escape of half a surrogate pair (\ud83d alone) is read as
// U+FFFD.
Result<Json> parse_limited_json(std::string_view json, const std::string& name);

// The same; also refuses more than kOrderedLimits, before anything is built.
Result<OrderedJson> parse_ordered_json(std::string_view json, const std::string& name);

// The same, and nothing is rounded: a number that reading would change (an integer of more than 64 bits, or
// more digits than a double has) keeps its text. It is then one of nlohmann's binary values, which nothing
// else in a text becomes, and compact_json() writes it as it was.
Result<OrderedJson> parse_exact_json(std::string_view json, const std::string& name,
                                     size_t most_depth = kMaxJsonDepth);
// Without the limits; discarded where it is no JSON.
OrderedJson exact_json(std::string_view json);
// The nearest double of a number, also of one that kept its text; nothing for other values.
std::optional<double> double_of(const OrderedJson& value);
// True where a number in the text is whole and parse_ordered_json() changes it. In linear time.
bool has_long_integer(std::string_view json);

// The content of a JsonSchema (moesaic/conversation.h).
struct ParsedJson {
  OrderedJson value;
};
JsonSchema json_schema(OrderedJson value);

// Without spaces, numbers as Rust's serde_json writes them (1e20, where nlohmann's dump has 1e+20).
std::string compact_json(const OrderedJson& value);

// Fails with the first of these members that is there and is neither a string nor null. So string_or() does
// not drop what somebody wrote.
Status check_strings(const OrderedJson& object, std::initializer_list<const char*> keys);

}  // namespace moesaic::text
