#include "text/harmony_json.h"

#include <map>

#include "base/error.h"
#include "text/limited_json.h"

namespace moesaic {
namespace {

using text::OrderedJson;
using text::string_or;

const OrderedJson& member(const OrderedJson& object, const char* key) {
  static const OrderedJson null;
  if (!object.is_object()) return null;
  const auto at = object.find(key);
  return at == object.end() ? null : *at;
}

// A string, nothing, or the parts of an array that are text or a refusal.
Result<std::string> content_text(const OrderedJson& content) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return invalid("content is neither a string nor an array of text parts");
  std::string text;
  for (const OrderedJson& part : content) {
    if (part.is_string()) {
      text += part.get<std::string>();
    } else if (member(part, "text").is_string()) {
      text += part["text"].get<std::string>();
    } else if (member(part, "refusal").is_string()) {
      text += part["refusal"].get<std::string>();
    } else {
      return invalid("content has a part of type '{}': only text is supported",
                     string_or(part, "type", "?").substr(0, 40));
    }
  }
  return text;
}

std::string qualified(const std::string& function) {
  return function.starts_with("functions.") ? function : "functions." + function;
}

// Builds the messages one after the other; tool answers name their tool by the call's id.
class Builder {
 public:
  explicit Builder(Conversation& conversation) : conversation_(conversation) {}

  Status add(const OrderedJson& json) {
    if (!json.is_object()) return invalid("not an object");
    ASSIGN_OR_RETURN(const std::string text, content_text(member(json, "content")));
    Message message = {.role = string_or(json, "role", ""),
                       .name = string_or(json, "name", ""),
                       .recipient = string_or(json, "recipient", ""),
                       .channel = string_or(json, "channel", ""),
                       .content_type = string_or(json, "content_type", ""),
                       .text = text};
    if (message.role == "function") message.role = "tool";  // as tools were called before there were several
    if (message.role == "system" || message.role == "developer") return add_instructions(std::move(message));
    if (message.role == "assistant") return add_assistant(json, std::move(message));
    if (message.role == "tool") return add_tool(json, std::move(message));
    if (message.role != "user")
      return invalid("role '{}' is none of system, developer, user, assistant, tool",
                     message.role.substr(0, 40));
    conversation_.messages.push_back(std::move(message));
    return {};
  }

 private:
  Status add_instructions(Message message) {
    std::string& instructions = conversation_.instructions;
    if (conversation_.messages.empty()) {
      instructions += (instructions.empty() ? "" : "\n\n") + message.text;
      return {};
    }
    message.role = "developer";
    message.text = "# Instructions\n\n" + message.text;
    conversation_.messages.push_back(std::move(message));
    return {};
  }

  Status add_assistant(const OrderedJson& json, Message message) {
    const std::string thinking = string_or(json, "thinking", string_or(json, "reasoning_content", ""));
    if (!thinking.empty()) push({.role = "assistant", .channel = "analysis", .text = thinking});
    if (message.text.empty()) message.text = string_or(json, "refusal", "");
    const OrderedJson& calls = member(json, "tool_calls");
    const OrderedJson& older = member(json, "function_call");
    const bool has_calls = (calls.is_array() && !calls.empty()) || older.is_object();
    if (message.channel.empty())
      message.channel = has_calls || !message.recipient.empty() ? "commentary" : "final";
    if (!message.text.empty() || !has_calls) push(std::move(message));
    if (!calls.is_null() && !calls.is_array()) return invalid("tool_calls is not an array");
    for (const OrderedJson& call : calls) RETURN_IF_ERROR(add_call(call));
    return older.is_object() ? add_call({{"function", older}}) : Status();
  }

  Status add_call(const OrderedJson& call) {
    const OrderedJson& function = member(call, "function");
    const std::string name = string_or(function, "name", "");
    if (name.empty()) return invalid("a tool call has no function.name");
    const OrderedJson& arguments = member(function, "arguments");
    const std::string text = arguments.is_string() ? arguments.get<std::string>()
                             : arguments.is_null() ? "{}"
                                                   : text::compact_json(arguments);
    tool_of_call_[string_or(call, "id", "")] = qualified(name);
    push({.role = "assistant",
          .recipient = qualified(name),
          .channel = "commentary",
          .content_type = "<|constrain|>json",
          .text = text});
    return {};
  }

  Status add_tool(const OrderedJson& json, Message message) {
    const auto call = tool_of_call_.find(string_or(json, "tool_call_id", ""));
    if (message.name.empty() && call != tool_of_call_.end()) message.name = call->second;
    if (message.name.empty())
      return invalid("a tool message needs a name, or the tool_call_id of an earlier call");
    if (message.name.find('.') == std::string::npos) message.name = qualified(message.name);
    if (message.channel.empty()) message.channel = "commentary";
    if (message.recipient.empty()) message.recipient = "assistant";
    push(std::move(message));
    return {};
  }

  void push(Message message) { conversation_.messages.push_back(std::move(message)); }

  Conversation& conversation_;
  std::map<std::string, std::string> tool_of_call_;
};

// {type: "function", function: {...}} or the function itself.
Status add_tools(const OrderedJson& list, Conversation& conversation) {
  if (list.is_null()) return {};
  if (!list.is_array()) return invalid("tools is not an array");
  for (const OrderedJson& entry : list) {
    const OrderedJson& function = member(entry, "function").is_object() ? entry["function"] : entry;
    Tool tool = {.name = string_or(function, "name", ""),
                 .description = string_or(function, "description", ""),
                 .parameters_json = ""};
    if (tool.name.empty()) return invalid("tool {} has no name", conversation.tools.size());
    const OrderedJson& parameters = member(function, "parameters");
    if (!parameters.is_null() && !parameters.is_object())
      return invalid("tool {}: parameters is not an object", conversation.tools.size());
    if (parameters.is_object()) tool.parameters_json = text::compact_json(parameters);
    conversation.tools.push_back(std::move(tool));
  }
  return {};
}

// Chat completions have one object more around it than responses.
void set_format(const OrderedJson& format, Conversation& conversation) {
  if (string_or(format, "type", "") != "json_schema") return;
  const OrderedJson& inner = member(format, "json_schema");
  const OrderedJson& holder = inner.is_object() ? inner : format;
  const OrderedJson& schema = member(holder, "schema");
  if (schema.is_null()) return;
  conversation.format = {.name = string_or(holder, "name", conversation.format.name),
                         .description = string_or(holder, "description", ""),
                         .schema_json = text::compact_json(schema)};
}

Status set_effort(const OrderedJson& value, Conversation& conversation) {
  if (value.is_null()) return {};
  const std::map<std::string, ReasoningEffort> efforts = {
      {"low", ReasoningEffort::kLow}, {"medium", ReasoningEffort::kMedium}, {"high", ReasoningEffort::kHigh}};
  const auto effort = value.is_string() ? efforts.find(value.get<std::string>()) : efforts.end();
  if (effort == efforts.end()) return invalid("reasoning_effort is none of low, medium, high");
  conversation.reasoning_effort = effort->second;
  return {};
}

Status read_fields(const OrderedJson& root, Conversation& conversation) {
  RETURN_IF_ERROR(add_tools(member(root, "tools"), conversation));
  RETURN_IF_ERROR(set_effort(member(root, "reasoning_effort"), conversation));
  set_format(member(root, "response_format"), conversation);
  conversation.instructions = string_or(root, "instructions", "");
  conversation.current_date = string_or(root, "current_date", conversation.current_date);
  conversation.knowledge_cutoff = string_or(root, "knowledge_cutoff", conversation.knowledge_cutoff);
  conversation.model_identity = string_or(root, "model_identity", conversation.model_identity);
  return {};
}

}  // namespace

Result<Conversation> conversation_from_json(std::string_view json, const std::string& name) {
  ASSIGN_OR_RETURN(const OrderedJson root, text::parse_ordered_json(json, name));
  const OrderedJson& messages = root.is_array() ? root : member(root, "messages");
  if (!messages.is_array()) return invalid("{}: neither an array of messages nor an object with one", name);
  if (messages.size() > kMaxMessages)
    return invalid("{}: {} messages are too many (at most {})", name, messages.size(), kMaxMessages);
  Conversation conversation;
  if (const Status status = read_fields(root, conversation); !status.ok())
    return invalid("{}: {}", name, status.message());
  Builder builder(conversation);
  for (size_t i = 0; i < messages.size(); ++i) {
    if (const Status status = builder.add(messages[i]); !status.ok())
      return invalid("{}: message {}: {}", name, i, status.message());
  }
  return conversation;
}

}  // namespace moesaic
