// JSON from files that nobody vouches for.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/whole_json.h"
#include "moesaic/status.h"

namespace moesaic {

using Json = nlohmann::json;                 // by the names of its fields
using OrderedJson = nlohmann::ordered_json;  // in the file's order

// Refuses nesting deeper than 32, duplicate keys and anything that is not JSON. name stands in the message.
// Time is linear in the text; ordered JSON compares members one by one, so too many of them are an error.
Result<Json> parse_json(std::string_view text, const std::string& name);
Result<OrderedJson> parse_ordered_json(std::string_view text, const std::string& name);
// The same of a file, of at most 6 MB: its values take up to 40 times as much. The index of a model
// with a tensor per expert has 2 MB.
Result<Json> read_json_file(const std::string& path);
Result<OrderedJson> read_ordered_json_file(const std::string& path);

// A small file's JSON; null where the file cannot be read, has more than 1 MB or holds anything else.
Json small_json(const std::string& path);

// null, false, 0, "", [] and {} ask for nothing.
template <typename AnyJson>
bool asks_for_nothing(const AnyJson& value) {
  if (value.is_string()) return value.template get<std::string>().empty();
  if (value.is_number()) return value.template get<double>() == 0;
  return value.is_null() || (value.is_boolean() && !value.template get<bool>()) ||
         (value.is_structured() && value.empty());
}

// A value as a message shows it.
template <typename AnyJson>
std::string shown(const AnyJson& value) {
  return value.dump(-1, ' ', true, AnyJson::error_handler_t::replace).substr(0, 60);
}

bool is_utf8(const std::string& text);

// Names out of a hostile file stand in messages: they stay one line and send nothing to a terminal.
std::string printable(std::string message);

}  // namespace moesaic
