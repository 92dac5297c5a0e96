// JSON from files and requests that nobody vouches for.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "moesaic/status.h"

namespace moesaic::text {

using Json = nlohmann::json;

inline constexpr int kMaxJsonDepth = 64;

// Refuses nesting deeper than kMaxJsonDepth and anything that is not JSON. name stands in the message.
Result<Json> parse_limited_json(std::string_view json, const std::string& name);

// object[key] where that is a string, a fallback otherwise, and where object is no object.
std::string string_or(const Json& object, const char* key, const std::string& fallback);

// A file's bytes; refuses more than 256 MiB.
Result<std::string> read_text_file(const std::string& path);

}  // namespace moesaic::text
