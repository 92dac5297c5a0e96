// nlohmann's parser, without its habit of ending at a NUL byte: what stands behind one would go unread.
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

// Discarded where the text is not one JSON value with white space around it.
template <typename AnyJson>
AnyJson parse_whole_json(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return AnyJson(AnyJson::value_t::discarded);
  return AnyJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

// Says what is wrong with a text that parse_whole_json() discards, and at which line and byte of the line.
std::string json_fault(std::string_view text);

}  // namespace moesaic
