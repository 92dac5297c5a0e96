// JSON on standard output. Names of files need not be UTF-8, and JSON has to be: what is not becomes U+FFFD.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace moesaic::app {

// On one line, or with an indent of so many spaces.
inline void print_json(const nlohmann::ordered_json& json, int indent = -1) {
  fmt::print("{}\n", json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace moesaic::app
