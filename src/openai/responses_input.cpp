#include "openai/responses_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "openai/sealed_reasoning.h"
#include "openai/sse.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {
namespace {

using text::string_or;

// Without meaning for the model: lists of tools that are elsewhere, questions to the user, marks.
constexpr std::array<std::string_view, 10> kLeftOut = {
    "mcp_list_tools",     "mcp_approval_request", "mcp_approval_response",
    "tool_search_call",   "tool_search_output",   "additional_tools",
    "compaction_trigger", "ghost_snapshot",       "program",
    "program_output"};
// What a server did by itself, result included: told as a line.
constexpr std::array<std::string_view, 5> kTold = {
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"};
// Members that say nothing to the model, or are too long to.
constexpr std::array<std::string_view, 8> kNotTold = {"type",   "id",     "call_id",      "status",
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

// Text parts as they are; a note for what the model cannot read. Others are for the conversation's reader to
// refuse.
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

Json commentary(const std::string& text) {
  return {{"role", "assistant"}, {"channel", "commentary"}, {"content", text}};
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
  explicit InputReader(const Tools& offered) : offered_(offered) {}

  // Null: the item says nothing to the model. Nothing: it is of no known kind.
  std::optional<Json> message_of(const Json& item) {
    if (!item.is_object()) return {};
    const std::string type = string_or(item, "type", "message");
    if (type == "message") return message(item);
    if (type.starts_with("input_")) return Json{{"role", "user"}, {"content", readable_content(item)}};
    if (type == "reasoning") return reasoning(item);
    if (type == "function_call") return function_call(item);
    if (type == "compaction" || type == "compaction_summary" || type == "context_compaction")
      return compaction(item);
    if (is_one_of(kLeftOut, type)) return Json();
    if (is_one_of(kTold, type)) return commentary(fmt::format("[{}: {}]", type, dump(told(item))));
    return other_tool(type, item);
  }

 private:
  static std::optional<Json> message(const Json& item) {
    if (!item.contains("role")) return {};
    return Json{{"role", item["role"]}, {"content", readable_content(member(item, "content"))}};
  }

  // Its text, else the sealed one, else the summary. What another server sealed cannot be read.
  static Json reasoning(const Json& item) {
    std::string text = joined_text(member(item, "content"));
    if (text.empty()) text = unseal_reasoning(string_or(item, "encrypted_content", "")).value_or("");
    if (text.empty()) text = joined_text(member(item, "summary"));
    if (text.empty()) return {};
    return {{"role", "assistant"}, {"channel", "analysis"}, {"content", text}};
  }

  static Json compaction(const Json& item) {
    const std::string summary = string_or(item, "summary", string_or(item, "text", ""));
    if (!summary.empty()) return commentary(summary);
    return commentary("[An earlier part of this conversation was compacted and cannot be read here.]");
  }

  Json function_call(const Json& item) {
    const std::string name =
        offered_.told({.name = string_or(item, "name", ""), .space = string_or(item, "namespace", "")});
    remember(item, name);
    const Json function = {{"name", name}, {"arguments", string_or(item, "arguments", "{}")}};
    return {{"role", "assistant"},
            {"tool_calls", Json::array({{{"id", string_or(item, "call_id", "")}, {"function", function}}})}};
  }

  // custom_tool_call, local_shell_call, shell_call, apply_patch_call, computer_call and their outputs.
  std::optional<Json> other_tool(const std::string& type, const Json& item) {
    constexpr std::array<std::string_view, 6> kTools = {"function", "custom_tool", "local_shell",
                                                        "shell",    "apply_patch", "computer"};
    if (type.ends_with(kOutput)) {
      const std::string tool = type.substr(0, type.size() - kOutput.size());
      if (is_one_of(kTools, tool))
        return output(item, tool == "function" || tool == "custom_tool" ? "" : tool);
    }
    if (!type.ends_with(kCall)) return {};
    const std::string tool = type.substr(0, type.size() - kCall.size());
    if (!is_one_of(kTools, tool)) return {};
    if (tool == "custom_tool") return call(item, string_or(item, "name", ""), string_or(item, "input", ""));
    return call(item, tool, dump(told(item)));
  }

  Json call(const Json& item, const std::string& name, const std::string& input) {
    remember(item, name);
    return {{"role", "assistant"},
            {"channel", "commentary"},
            {"recipient", "functions." + name},
            {"content", input}};
  }

  // name: where no call is known.
  Json output(const Json& item, const std::string& name) const {
    Json message = {{"role", "tool"},
                    {"tool_call_id", id_of(item)},
                    {"content", readable_content(member(item, "output"))}};
    const auto known = tools_.find(id_of(item));
    if (known != tools_.end()) {
      message["name"] = "functions." + known->second;
    } else if (!name.empty()) {
      message["name"] = "functions." + name;
    }
    if (!is_text(message["content"])) message["content"] = dump(message["content"]);
    return message;
  }

  static Json told(const Json& item) {
    Json told = Json::object();
    for (const auto& [key, value] : item.items()) {
      if (!is_one_of(kNotTold, key) && !value.is_null()) told[key] = value;
    }
    return told;
  }

  static std::string id_of(const Json& item) { return string_or(item, "call_id", string_or(item, "id", "")); }

  void remember(const Json& item, const std::string& name) { tools_[id_of(item)] = name; }

  const Tools& offered_;
  std::map<std::string, std::string> tools_;  // names by call
};

std::string why_not(const Json& item, size_t index) {
  const std::string type = string_or(item, "type", "?").substr(0, 40);
  if (type == "item_reference")
    return fmt::format(
        "item {}: nothing is stored here, so that an item_reference refers to nothing: send the "
        "item itself",
        index);
  return fmt::format(
      "item {}: '{}' is no kind of item that is known here; messages, reasoning, calls and "
      "their outputs are",
      index, type);
}

}  // namespace

Json read_input(Fields& fields, const Tools& tools) {
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
  InputReader reader(tools);
  for (size_t i = 0; i < input->size(); ++i) {
    std::optional<Json> message = reader.message_of((*input)[i]);
    if (!message) {
      fields.refuse("input", why_not((*input)[i], i));
      return messages;
    }
    if (!message->is_null()) messages.push_back(std::move(*message));
  }
  if (messages.empty()) fields.refuse("input", "holds nothing that the model could read");
  return messages;
}

}  // namespace moesaic::openai
