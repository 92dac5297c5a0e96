#include "openai/sse.h"

#include <array>
#include <utility>

namespace moesaic::openai {

std::string one_line(std::string json) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kBreaks = {
      {{"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}}};
  for (const auto& [bytes, escape] : kBreaks) {
    size_t at = json.find(bytes);
    for (; at != std::string::npos; at = json.find(bytes, at + escape.size()))
      json.replace(at, bytes.size(), escape);
  }
  return json;
}

void append_event(std::string& sse, std::string_view data, std::string_view name) {
  if (!name.empty()) sse.append("event: ").append(name).append("\n");
  sse.append("data: ").append(one_line(std::string(data))).append("\n\n");
}

}  // namespace moesaic::openai
