#include "text/harmony_json.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "text/conversation_builder.h"

namespace moesaic {
namespace {

using text::check_strings;
using text::Media;
using text::member;
using text::OrderedJson;
using text::string_or;

// The text of a part of a content; nothing where it has none.
std::optional<std::string> part_text(const OrderedJson& part) {
  if (part.is_string()) return part.get<std::string>();
  for (const char* key : {"text", "refusal"}) {
    if (member(part, key).is_string()) return part[key].get<std::string>();
  }
  return {};
}

// The reasoning of an assistant's message. Clients send it back under the name by which they were given it,
// and dumps of their objects have the other names with null or an empty text.
std::string reasoning_of(const OrderedJson& json) {
  for (const char* key : {"thinking", "reasoning_content", "reasoning"}) {
    if (std::string text = string_or(json, key, ""); !text.empty()) return text;
  }
  return "";
}

Status add_custom_call(const std::string& id, const OrderedJson& custom, ConversationBuilder& builder) {
  RETURN_IF_ERROR(check_strings(custom, {"name", "input"}));
  return builder.add_custom_call(id, string_or(custom, "name", ""), string_or(custom, "input", ""));
}

Status add_call(const OrderedJson& call, ConversationBuilder& builder) {
  const OrderedJson& function = member(call, "function");
  RETURN_IF_ERROR(check_strings(call, {"id"}));
  if (const OrderedJson& custom = member(call, "custom"); custom.is_object() && !function.is_object())
    return add_custom_call(string_or(call, "id", ""), custom, builder);
  RETURN_IF_ERROR(check_strings(function, {"name"}));
  const OrderedJson& arguments = member(function, "arguments");
  return builder.add_call(string_or(call, "id", ""), string_or(function, "name", ""),
                          arguments.is_string() ? arguments.get<std::string>()
                          : arguments.is_null() ? "{}"
                                                : text::compact_json(arguments));
}

Status add_assistant(const OrderedJson& json, Message message, ConversationBuilder& builder) {
  const std::string reasoning = reasoning_of(json);
  if (!reasoning.empty()) builder.add_reasoning(reasoning);
  if (message.text.empty()) message.text = string_or(json, "refusal", "");
  const OrderedJson& calls = member(json, "tool_calls");
  const OrderedJson& older = member(json, "function_call");
  if (!calls.is_null() && !calls.is_array()) return invalid("tool_calls is not an array");
  if (!older.is_null() && !older.is_object()) return invalid("function_call is not an object");
  const bool has_calls = (calls.is_array() && !calls.empty()) || older.is_object();
  if (message.channel.empty() && has_calls) message.channel = "commentary";
  if (!message.text.empty() || !has_calls) RETURN_IF_ERROR(builder.add(std::move(message)));
  for (const OrderedJson& call : calls) RETURN_IF_ERROR(add_call(call, builder));
  return older.is_object() ? add_call({{"function", older}}, builder) : Status();
}

Status add_message(const OrderedJson& json, bool is_question, ConversationBuilder& builder) {
  if (!json.is_object()) return invalid("not an object");
  builder.begin_message();
  RETURN_IF_ERROR(check_strings(json, {"role", "name", "recipient", "channel", "content_type", "tool_call_id",
                                       "thinking", "reasoning", "reasoning_content", "refusal"}));
  ASSIGN_OR_RETURN(std::string text, message_text(json, text::media_of(json, is_question)));
  Message message = {.role = string_or(json, "role", ""),
                     .name = string_or(json, "name", ""),
                     .recipient = string_or(json, "recipient", ""),
                     .channel = string_or(json, "channel", ""),
                     .content_type = string_or(json, "content_type", ""),
                     .text = std::move(text)};
  if (message.role == "assistant") return add_assistant(json, std::move(message), builder);
  return builder.add(std::move(message), string_or(json, "tool_call_id", ""));
}

// {type: "function", function: {...}} or the function itself.
Status add_tools(const OrderedJson& list, Conversation& conversation) {
  if (list.is_null()) return {};
  if (!list.is_array()) return invalid("tools is not an array");
  for (const OrderedJson& entry : list) {
    const OrderedJson& function = member(entry, "function").is_object() ? entry["function"] : entry;
    RETURN_IF_ERROR(check_strings(function, {"name", "description"}));
    Tool tool = {.name = string_or(function, "name", ""),
                 .description = string_or(function, "description", ""),
                 .parameters = {}};
    if (tool.name.empty()) return invalid("tool {} has no name", conversation.tools.size());
    const OrderedJson& parameters = member(function, "parameters");
    if (!parameters.is_null() && !parameters.is_object())
      return invalid("tool {}: parameters is not an object", conversation.tools.size());
    if (parameters.is_object()) {
      if (text::compact_json(parameters).size() > kMaxParametersBytes)
        return invalid("parameters of tool '{}': more than {} bytes", tool.name.substr(0, 80),
                       kMaxParametersBytes);
      tool.parameters = text::json_schema(parameters);
    }
    conversation.tools.push_back(std::move(tool));
  }
  return {};
}

// Chat completions have one object more around it than responses.
void set_format(const OrderedJson& format, Conversation& conversation) {
  if (string_or(format, "type", "") != "json_schema") return;
  const OrderedJson& inner = member(format, "json_schema");
  conversation.format = response_format(inner.is_object() ? inner : format);
}

Status set_effort(const OrderedJson& value, Conversation& conversation) {
  if (value.is_null()) return {};
  const auto effort = value.is_string() ? effort_of(value.get_ref<const std::string&>()) : std::nullopt;
  if (!effort) return invalid("reasoning_effort is none of low, medium, high");
  conversation.reasoning_effort = *effort;
  return {};
}

Status read_fields(const OrderedJson& root, Conversation& conversation) {
  RETURN_IF_ERROR(add_tools(member(root, "tools"), conversation));
  RETURN_IF_ERROR(set_effort(member(root, "reasoning_effort"), conversation));
  set_format(member(root, "response_format"), conversation);
  RETURN_IF_ERROR(
      check_strings(root, {"instructions", "current_date", "knowledge_cutoff", "model_identity"}));
  conversation.instructions = string_or(root, "instructions", "");
  conversation.current_date = string_or(root, "current_date", conversation.current_date);
  conversation.knowledge_cutoff = string_or(root, "knowledge_cutoff", conversation.knowledge_cutoff);
  conversation.model_identity = string_or(root, "model_identity", conversation.model_identity);
  return {};
}

}  // namespace

Result<std::string> content_text(const OrderedJson& content, Media media) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return invalid("content is neither a string nor an array of text parts");
  std::string text;
  for (const OrderedJson& part : content) {
    std::optional<std::string> more = part_text(part);
    const std::string_view medium = text::medium_of(part);
    if (!more && !medium.empty() && media == Media::kNoted) more = text::omitted(medium);
    if (!more)
      return invalid("content has a part of type '{}' without text: only text is supported",
                     string_or(part, "type", "?").substr(0, 40));
    text += *more;
  }
  return text;
}

Result<std::string> message_text(const OrderedJson& message, Media media) {
  ASSIGN_OR_RETURN(std::string text, content_text(member(message, "content"), media));
  const OrderedJson& images = member(message, "images");
  if (!images.is_null() && !images.is_array()) return invalid("images is not an array");
  std::string notes;
  for (size_t i = 0; i < images.size(); ++i) notes += text::omitted("image");
  if (member(message, "audio").is_object()) notes += text::omitted("audio");
  if (!notes.empty() && media == Media::kRefused)
    return invalid("images and audio are not supported: this model reads text only");
  return text + (text.empty() || notes.empty() ? "" : "\n") + notes;
}

ResponseFormat response_format(const OrderedJson& json) {
  ResponseFormat format;
  const OrderedJson& schema = member(json, "schema");
  if (schema.is_null()) return format;
  format.name = string_or(json, "name", format.name);
  format.description = string_or(json, "description", "");
  format.schema_json = text::compact_json(schema);
  return format;
}

Status check_message_count(size_t count, const std::string& name) {
  if (count <= kMaxMessages) return {};
  return invalid("{}: {} messages are too many (at most {})", name, count, kMaxMessages);
}

Status read_messages(const OrderedJson& list, const std::string& name, Conversation& conversation) {
  RETURN_IF_ERROR(check_message_count(list.size(), name));
  ConversationBuilder builder(conversation);
  const size_t question = text::question_of(list, conversation.continues);
  for (size_t i = 0; i < list.size(); ++i) {
    if (const Status status = add_message(list[i], i == question, builder); !status.ok())
      return invalid("{}: message {}: {}", name, i, status.message());
  }
  return {};
}

Result<Conversation> conversation_from_json(std::string_view json, const std::string& name) {
  ASSIGN_OR_RETURN(const OrderedJson root, text::parse_exact_json(json, name));
  const OrderedJson& messages = root.is_array() ? root : member(root, "messages");
  if (!messages.is_array()) return invalid("{}: neither an array of messages nor an object with one", name);
  RETURN_IF_ERROR(check_message_count(messages.size(), name));
  Conversation conversation;
  if (const Status status = read_fields(root, conversation); !status.ok())
    return invalid("{}: {}", name, status.message());
  RETURN_IF_ERROR(read_messages(messages, name, conversation));
  return conversation;
}

}  // namespace moesaic
