#include "openai/sse.h"

namespace moesaic::openai {

std::string dump(const text::OrderedJson& json) {
  return json.dump(-1, ' ', false, text::OrderedJson::error_handler_t::replace);
}

void append_event(std::string& sse, std::string_view data, std::string_view name) {
  if (!name.empty()) sse.append("event: ").append(name).append("\n");
  sse.append("data: ").append(data).append("\n\n");
}

}  // namespace moesaic::openai
