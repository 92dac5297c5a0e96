#include "openai/responses_input.h"

#include <fmt/format.h>

#include <string>

namespace moesaic::openai {
namespace {

using text::string_or;

const Json& member(const Json& object, const char* key) {
  static const Json null;
  const auto at = object.find(key);
  return at == object.end() ? null : *at;
}

Json reasoning_message(const Json& item) {
  std::string text;
  const Json& content = member(item, "content");
  const Json& parts = content.is_array() && !content.empty() ? content : member(item, "summary");
  for (const Json& part : parts) text += string_or(part, "text", "");
  return {{"role", "assistant"}, {"channel", "analysis"}, {"content", text}};
}

Json call_message(const Json& item) {
  const Json function = {{"name", string_or(item, "name", "")},
                         {"arguments", string_or(item, "arguments", "{}")}};
  return {{"role", "assistant"},
          {"tool_calls", Json::array({{{"id", string_or(item, "call_id", "")}, {"function", function}}})}};
}

Json output_message(const Json& item) {
  return {{"role", "tool"},
          {"tool_call_id", string_or(item, "call_id", "")},
          {"content", member(item, "output")}};
}

// Null where the item is none that can be part of a prompt.
Json message_of(const Json& item) {
  if (!item.is_object()) return {};
  const std::string type = string_or(item, "type", "message");
  if (type == "message" && item.contains("role"))
    return {{"role", item["role"]}, {"content", member(item, "content")}};
  if (type == "reasoning") return reasoning_message(item);
  if (type == "function_call") return call_message(item);
  if (type == "function_call_output") return output_message(item);
  return {};
}

}  // namespace

Json read_input(Fields& fields) {
  Json messages = Json::array();
  const Json* input = fields.find("input");
  if (input != nullptr && input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (input == nullptr || !input->is_array() || input->empty()) {
    fields.refuse("input", "must be a string or an array of at least one item");
    return messages;
  }
  for (size_t i = 0; i < input->size(); ++i) {
    Json message = message_of((*input)[i]);
    if (message.is_null()) {
      const std::string type = string_or((*input)[i], "type", "?").substr(0, 40);
      fields.refuse("input", fmt::format("item {}: '{}' is none of message, reasoning, function_call, "
                                         "function_call_output",
                                         i, type));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace moesaic::openai
