#include "openai/sse.h"

#include <array>
#include <utility>

namespace moesaic::openai {

std::string one_line(std::string_view json) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kBreaks = {
      {{"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}}};
  std::string text;
  text.reserve(json.size());
  size_t copied = 0;
  for (size_t at = 0; at < json.size(); ++at) {
    if (json[at] != '\xC2' && json[at] != '\xE2') continue;
    for (const auto& [bytes, escape] : kBreaks) {
      if (!json.substr(at).starts_with(bytes)) continue;
      text.append(json, copied, at - copied).append(escape);
      copied = at + bytes.size();
    }
  }
  return text.append(json, copied);
}

void append_event(std::string& sse, std::string_view data, std::string_view name) {
  if (!name.empty()) sse.append("event: ").append(name).append("\n");
  sse.append("data: ").append(one_line(data)).append("\n\n");
}

}  // namespace moesaic::openai
