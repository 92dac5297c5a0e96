#include "openai/spliced_json.h"

#include <algorithm>

namespace moesaic::openai {
namespace {

using Json = text::OrderedJson;

bool holds_text(const Json& json) {
  return json.is_binary() || (json.is_structured() && std::any_of(json.begin(), json.end(), holds_text));
}

std::string dump_values(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void append(const Json& json, std::string& text) {
  if (!holds_text(json)) {
    text += dump_values(json);
  } else if (json.is_binary()) {
    const auto& bytes = json.get_binary();
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } else {
    text += json.is_object() ? '{' : '[';
    for (auto at = json.begin(); at != json.end(); ++at) {
      if (at != json.begin()) text += ',';
      if (json.is_object()) text += dump_values(at.key()) + ':';
      append(*at, text);
    }
    text += json.is_object() ? '}' : ']';
  }
}

}  // namespace

std::string dump(const Json& json) {
  std::string text;
  append(json, text);
  return text;
}

Json spliced(std::string_view json) { return Json::binary({json.begin(), json.end()}); }

void ArrayText::push_back(const Json& value) {
  const bool first = empty();
  text_.pop_back();
  if (!first) text_ += ',';
  append(value, text_);
  text_ += ']';
}

}  // namespace moesaic::openai
