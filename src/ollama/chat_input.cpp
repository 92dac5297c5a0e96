#include "ollama/chat_input.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "openai/argument_style.h"
#include "text/conversation_builder.h"
#include "text/harmony_json.h"

namespace moesaic::ollama {
namespace {

using openai::Json;
using text::member;
using text::string_or;

constexpr const char* kName = "messages";

class MessageReader {
 public:
  explicit MessageReader(Conversation& conversation) : builder_(conversation) {}

  Status add(const Json& json, bool is_question) {
    if (!json.is_object()) return invalid("not an object");
    builder_.begin_message();
    RETURN_IF_ERROR(text::check_strings(json, {"role", "thinking", "tool_call_id", "tool_name", "name"}));
    ASSIGN_OR_RETURN(std::string text, message_text(json, text::media_of(json, is_question)));
    const std::string role = string_or(json, "role", "");
    if (role == "assistant") return assistant(json, std::move(text));
    if (role == "tool") return result(json, std::move(text));
    return builder_.add({.role = role, .text = std::move(text)});
  }

 private:
  Status assistant(const Json& json, std::string text) {
    std::string thinking = string_or(json, "thinking", "");
    if (!thinking.empty()) builder_.add_reasoning(std::move(thinking));
    const Json& calls = member(json, "tool_calls");
    if (!calls.is_null() && !calls.is_array()) return invalid("tool_calls is not an array");
    const bool has_calls = calls.is_array() && !calls.empty();
    if (!text.empty() || !has_calls)
      RETURN_IF_ERROR(builder_.add(
          {.role = "assistant", .channel = has_calls ? "commentary" : "final", .text = std::move(text)}));
    for (const Json& one : calls) RETURN_IF_ERROR(call(one));
    return {};
  }
  Status call(const Json& json) {
    const Json& function = member(json, "function");
    const Json& arguments = member(function, "arguments");
    RETURN_IF_ERROR(text::check_strings(json, {"id"}));
    RETURN_IF_ERROR(text::check_strings(function, {"name"}));
    if (!arguments.is_null() && !arguments.is_object() && !arguments.is_string())
      return invalid("a call's arguments are not an object");
    const std::string id = string_or(json, "id", "");
    return builder_.add_call(id, string_or(function, "name", ""),
                             arguments.is_string() ? arguments.get<std::string>()
                             : arguments.is_null() ? "{}"
                                                   : openai::text_of_arguments(arguments, id));
  }
  Status result(const Json& json, std::string text) {
    const std::string id = string_or(json, "tool_call_id", "");
    std::string name = string_or(json, "tool_name", string_or(json, "name", ""));
    if (name.empty() && id.empty()) name = builder_.next_tool();
    return builder_.add({.role = "tool", .name = std::move(name), .text = std::move(text)}, id);
  }

  ConversationBuilder builder_;
};

}  // namespace

Result<Conversation> read_messages(const Json& messages, Conversation conversation) {
  RETURN_IF_ERROR(check_message_count(messages.size(), kName));
  MessageReader reader(conversation);
  const bool continues = !messages.empty() && string_or(messages.back(), "role", "") == "assistant";
  const size_t question = text::question_of(messages, continues);
  for (size_t i = 0; i < messages.size(); ++i) {
    if (const Status status = reader.add(messages[i], i == question); !status.ok())
      return invalid("{}: message {}: {}", kName, i, status.message());
  }
  if (continues) leave_open_if_assistant(conversation);
  return conversation;
}

}  // namespace moesaic::ollama
