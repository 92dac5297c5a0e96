#include "openai/responses_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "openai/sealed_reasoning.h"
#include "openai/sse.h"
#include "openai/tool_choice.h"
#include "text/conversation_builder.h"
#include "text/harmony_json.h"
#include "text/utf8.h"

namespace moesaic::openai {
namespace {

using text::string_or;

// Without meaning for the model: lists of tools that are elsewhere, questions to the user, marks.
constexpr std::array<std::string_view, 10> kLeftOut = {
    "mcp_list_tools",     "mcp_approval_request", "mcp_approval_response",
    "tool_search_call",   "tool_search_output",   "additional_tools",
    "compaction_trigger", "ghost_snapshot",       "program",
    "program_output"};
// What a server did by itself, result included: becomes a line of commentary.
constexpr std::array<std::string_view, 5> kSummarised = {
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"};
// Members that say nothing to the model, or are too long to.
constexpr std::array<std::string_view, 8> kUnsaid = {"type",   "id",     "call_id",      "status",
                                                     "result", "caller", "container_id", "server_label"};
constexpr std::string_view kCall = "_call", kOutput = "_call_output";

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  const auto at = object.find(key);
  return at == object.end() ? null : *at;
}

// A note for what the model cannot read, text parts as they are. Others are for content_text to refuse.
Json readable(const Json& part) {
  const auto note = [](const char* what) {
    return Json{{"type", "text"}, {"text", fmt::format("[{} omitted: this model reads text only]", what)}};
  };
  const std::string type = string_or(part, "type", "");
  if (type == "input_image" || type == "image_url" || type == "output_image" || type == "computer_screenshot")
    return note("image");
  if (type == "input_audio" || type == "output_audio") return note("audio");
  if (type == "input_file" || type == "file") return note("file");
  if (type == "refusal") return {{"type", "text"}, {"text", string_or(part, "refusal", "")}};
  return part;
}

Json readable_content(const Json& content) {
  if (content.is_object()) return Json::array({readable(content)});
  if (!content.is_array()) return content;
  Json parts = Json::array();
  for (const Json& part : content) parts.push_back(readable(part));
  return parts;
}

bool is_text(const Json& content) {
  const auto has_text = [](const Json& part) {
    return part.is_string() || (part.is_object() && member(part, "text").is_string());
  };
  return content.is_string() || content.is_null() ||
         (content.is_array() && std::all_of(content.begin(), content.end(), has_text));
}

std::string joined_text(const Json& parts) {
  std::string text;
  if (!parts.is_array()) return text;
  for (const Json& part : parts) text += string_or(part, "text", "");
  return text;
}

// Items become messages one after the other; an output names its tool by the call's id.
class InputReader {
 public:
  InputReader(const Tools& offered, Conversation& conversation) : offered_(offered), builder_(conversation) {}

  // False: the item is of no known kind.
  bool add(const Json& item) {
    if (!item.is_object()) return false;
    const Status strings =
        text::check_strings(item, {"type", "role", "call_id", "name", "namespace", "arguments"});
    if (!strings.ok()) return note(strings);
    const std::string type = string_or(item, "type", "message");
    if (type == "message") return message(item);
    if (type.starts_with("input_")) return add_content("user", item);
    if (type == "reasoning") return reasoning(item);
    if (type == "function_call") return function_call(item);
    if (type == "compaction" || type == "compaction_summary" || type == "context_compaction")
      return compaction(item);
    if (is_one_of(kLeftOut, type)) return true;
    if (is_one_of(kSummarised, type)) return commentary(fmt::format("[{}: {}]", type, dump(said(item))));
    return other_tool(type, item);
  }
  // Messages so far, also those that the conversation could not take.
  size_t messages() const { return messages_; }
  // What was wrong with the first of those.
  const Status& status() const { return status_; }

 private:
  // Counts a message and keeps the first error.
  bool note(const Status& added) {
    if (!added.ok() && status_.ok())
      status_ = invalid("{}: message {}: {}", kConversation, messages_, added.message());
    ++messages_;
    return true;
  }
  bool add_content(std::string role, const Json& content) {
    Result<std::string> text = content_text(readable_content(content));
    if (!text.ok()) return note(text.status());
    return note(builder_.add({.role = std::move(role), .text = std::move(text).value()}));
  }
  bool message(const Json& item) {
    return item.contains("role") && add_content(string_or(item, "role", ""), member(item, "content"));
  }
  bool commentary(std::string text) {
    return note(builder_.add({.role = "assistant", .channel = "commentary", .text = std::move(text)}));
  }

  // Its text, else the sealed one, else the summary. What another server sealed cannot be read.
  bool reasoning(const Json& item) {
    std::string text = joined_text(member(item, "content"));
    if (text.empty())
      text = utf8_lossy(unseal_reasoning(string_or(item, "encrypted_content", "")).value_or(""));
    if (text.empty()) text = joined_text(member(item, "summary"));
    if (text.empty()) return true;
    builder_.add_reasoning(std::move(text));
    return note({});
  }

  bool compaction(const Json& item) {
    const std::string summary = string_or(item, "summary", string_or(item, "text", ""));
    if (!summary.empty()) return commentary(summary);
    return commentary("[An earlier part of this conversation was compacted and cannot be read here.]");
  }

  bool function_call(const Json& item) {
    const std::string name =
        offered_.in_prompt({.name = string_or(item, "name", ""), .space = string_or(item, "namespace", "")});
    remember(item, name);
    return note(builder_.add_call(string_or(item, "call_id", ""), name, string_or(item, "arguments", "{}")));
  }

  // custom_tool_call, local_shell_call, shell_call, apply_patch_call, computer_call and their outputs.
  bool other_tool(const std::string& type, const Json& item) {
    constexpr std::array<std::string_view, 6> kTools = {"function", "custom_tool", "local_shell",
                                                        "shell",    "apply_patch", "computer"};
    if (type.ends_with(kOutput)) {
      const std::string tool = type.substr(0, type.size() - kOutput.size());
      if (is_one_of(kTools, tool))
        return output(item, tool == "function" || tool == "custom_tool" ? "" : tool);
    }
    if (!type.ends_with(kCall)) return false;
    const std::string tool = type.substr(0, type.size() - kCall.size());
    if (!is_one_of(kTools, tool)) return false;
    if (tool == "custom_tool") return call(item, string_or(item, "name", ""), string_or(item, "input", ""));
    return call(item, tool, dump(said(item)));
  }

  bool call(const Json& item, const std::string& name, std::string input) {
    remember(item, name);
    return note(builder_.add({.role = "assistant",
                              .recipient = "functions." + name,
                              .channel = "commentary",
                              .text = std::move(input)}));
  }

  // name: where no call is known.
  bool output(const Json& item, const std::string& name) {
    const Json content = readable_content(member(item, "output"));
    Message message{.role = "tool", .text = is_text(content) ? content_text(content).value() : dump(content)};
    const auto known = tools_.find(id_of(item));
    if (known != tools_.end()) {
      message.name = "functions." + known->second;
    } else if (!name.empty()) {
      message.name = "functions." + name;
    }
    return note(builder_.add(std::move(message), id_of(item)));
  }

  // The members that say something to the model.
  static Json said(const Json& item) {
    Json said = Json::object();
    for (const auto& [key, value] : item.items()) {
      if (!is_one_of(kUnsaid, key) && !value.is_null()) said[key] = value;
    }
    return said;
  }

  static std::string id_of(const Json& item) { return string_or(item, "call_id", string_or(item, "id", "")); }

  void remember(const Json& item, const std::string& name) { tools_[id_of(item)] = name; }

  const Tools& offered_;
  ConversationBuilder builder_;
  std::map<std::string, std::string> tools_;  // names by call
  size_t messages_ = 0;
  Status status_;
};

std::string why_not(const Json& item, size_t index) {
  const std::string type = string_or(item, "type", "?").substr(0, 40);
  if (type == "item_reference")
    return fmt::format(
        "item {}: single items are not stored, so that an item_reference refers to nothing: send the "
        "item itself",
        index);
  return fmt::format(
      "item {}: '{}' is no kind of item that is known here; messages, reasoning, calls and "
      "their outputs are",
      index, type);
}

}  // namespace

Result<Conversation> read_input(Fields& fields, const Tools& tools, Conversation conversation) {
  const Json* input = fields.find("input");
  if (input != nullptr && input->is_string()) {
    conversation.messages.push_back({.role = "user", .text = input->get<std::string>()});
    return conversation;
  }
  if (input == nullptr || !input->is_array() || input->empty()) {
    fields.refuse("input", "must be a string or an array of at least one item");
    return conversation;
  }
  InputReader reader(tools, conversation);
  for (size_t i = 0; i < input->size(); ++i) {
    if (reader.add((*input)[i])) continue;
    fields.refuse("input", why_not((*input)[i], i));
    return conversation;
  }
  if (reader.messages() == 0) fields.refuse("input", "holds nothing that the model could read");
  RETURN_IF_ERROR(check_message_count(reader.messages(), kConversation));
  RETURN_IF_ERROR(reader.status());
  return conversation;
}

}  // namespace moesaic::openai
