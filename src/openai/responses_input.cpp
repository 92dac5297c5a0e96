#include "openai/responses_input.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "openai/sealed_reasoning.h"
#include "openai/sse.h"
#include "openai/tool_choice.h"
#include "text/conversation_builder.h"
#include "text/harmony_json.h"
#include "text/unread_media.h"
#include "text/utf8.h"

namespace moesaic::openai {
namespace {

using text::member;
using text::string_or;

// Without meaning for the model: lists of tools that are elsewhere, questions to the user, marks, and what
// input_settings.cpp reads.
constexpr std::array<std::string_view, 9> kLeftOut = {
    "mcp_list_tools",     "mcp_approval_request", "mcp_approval_response",
    "tool_search_call",   "tool_search_output",   "additional_tools",
    "compaction_trigger", "configuration_update", "ghost_snapshot"};
// Calls that a server answered by itself: each becomes a line of commentary.
constexpr std::array<std::string_view, 7> kSummarised = {
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
    "mcp_call",        "program",          "program_output"};
// Members that say nothing to the model.
constexpr std::array<std::string_view, 8> kUnsaid = {"type",   "id",           "call_id",      "status",
                                                     "caller", "container_id", "server_label", "fingerprint"};
constexpr std::string_view kCall = "_call", kOutput = "_call_output";

// A list of parts, with notes for what the model cannot read.
Json readable(const Json& parts) {
  if (parts.is_object()) return readable(Json::array({parts}));
  if (!parts.is_array()) return parts;
  Json notes = Json::array();
  for (const Json& part : parts) {
    const std::string_view medium = text::medium_of(part);
    notes.push_back(medium.empty() ? part : Json{{"type", "text"}, {"text", text::omitted(medium)}});
  }
  return notes;
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
  InputReader(const Tools& offered, Conversation& conversation)
      : offered_(offered), conversation_(conversation), builder_(conversation) {}

  // Takes the next item of the input, which errors call `place`. False: it is of no known kind.
  bool add(const Json& item, std::string place) {
    place_ = std::move(place);
    if (!item.is_object()) return false;
    const Status strings = text::check_strings(item, {"type", "role", "call_id", "name", "namespace"});
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
  // The error of the first of those.
  const Status& status() const { return status_; }

 private:
  // Counts a message and keeps the first error.
  bool note(const Status& added) {
    if (!added.ok() && status_.ok()) status_ = invalid("input: {}: {}", place_, added.message());
    ++messages_;
    return true;
  }
  // channel: of an assistant's message; empty: its final answer, or commentary if a call follows.
  bool add_content(const std::string& role, const Json& content, const char* channel = "") {
    const Json parts = content.is_object() ? Json::array({content}) : content;
    Result<std::string> text = content_text(parts, text::Media::kNoted);
    if (!text.ok()) return note(text.status());
    if (role != "assistant") unanswered_.clear();
    if (role == "assistant" && *channel == 0) unanswered_.push_back(conversation_.messages.size());
    return note(builder_.add({.role = role, .channel = channel, .text = std::move(text).value()}));
  }
  bool message(const Json& item) {
    const std::string role = string_or(item, "role", ""), phase = string_or(item, "phase", "");
    const char* channel = role != "assistant"       ? ""
                          : phase == "commentary"   ? "commentary"
                          : phase == "final_answer" ? "final"
                                                    : "";
    return item.contains("role") && add_content(role, member(item, "content"), channel);
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

  // The assistant's message before a call was no answer yet.
  void before_call() {
    for (const size_t index : std::exchange(unanswered_, {}))
      conversation_.messages[index].channel = "commentary";
  }

  std::string tool_of(const Json& item) const {
    return offered_.in_prompt(
        {.name = string_or(item, "name", ""), .space = string_or(item, "namespace", "")});
  }

  bool function_call(const Json& item) {
    if (const Status strings = text::check_strings(item, {"arguments"}); !strings.ok()) return note(strings);
    before_call();
    return note(builder_.add_call(id_of(item), tool_of(item), string_or(item, "arguments", "{}")));
  }

  // custom_tool_call, local_shell_call, shell_call, apply_patch_call, computer_call and their outputs.
  bool other_tool(const std::string& type, const Json& item) {
    constexpr std::array<std::string_view, 6> kTools = {"function", "custom_tool", "local_shell",
                                                        "shell",    "apply_patch", "computer"};
    if (type.ends_with(kOutput)) {
      const std::string tool = type.substr(0, type.size() - kOutput.size());
      if (is_one_of(kTools, tool))
        return output(item, tool == "function" || tool == "custom_tool" ? tool_of(item) : tool);
    }
    if (!type.ends_with(kCall)) return false;
    const std::string tool = type.substr(0, type.size() - kCall.size());
    if (!is_one_of(kTools, tool)) return false;
    before_call();
    if (tool == "custom_tool")
      return note(builder_.add_custom_call(id_of(item), tool_of(item), string_or(item, "input", "")));
    return note(builder_.add_custom_call(id_of(item), tool, dump(said(item))));
  }

  // name: where no call is known.
  bool output(const Json& item, const std::string& name) {
    unanswered_.clear();
    const std::string id = id_of(item), type = string_or(item, "type", "");
    if ((type == "function_call_output" || type == "custom_tool_call_output") &&
        member(item, "output").is_null())
      return note(invalid("output is missing"));
    if (name.empty() && !builder_.has_call(id))
      return note(
          invalid("an output for the call '{}', which is not in the input before it: send the call too, "
                  "or the tool's name as name",
                  id.substr(0, 80)));
    return note(builder_.add({.role = "tool", .name = name, .text = output_text(item)}, id));
  }

  // The output of a call. A patch that failed may say so in its status alone.
  static std::string output_text(const Json& item) {
    const Json content = readable(member(item, "output"));
    const Result<std::string> plain = content_text(content);
    std::string text = plain.ok() ? plain.value() : dump(content);
    if (string_or(item, "type", "") != "apply_patch_call_output") return text;
    std::string status = string_or(item, "status", "");
    if (text.empty()) return status;
    return status == "failed" ? "failed: " + text : text;
  }

  // The members that say something to the model. An image's bytes do not.
  static Json said(const Json& item) {
    const bool image = string_or(item, "type", "") == "image_generation_call";
    Json said = Json::object();
    for (const auto& [key, value] : item.items()) {
      if (is_one_of(kUnsaid, key) || value.is_null() || (image && key == "result")) continue;
      said[key] = value.is_array() ? readable(value) : value;
    }
    return said;
  }

  static std::string id_of(const Json& item) { return string_or(item, "call_id", string_or(item, "id", "")); }

  const Tools& offered_;
  Conversation& conversation_;
  ConversationBuilder builder_;
  std::vector<size_t> unanswered_;  // the assistant's messages of this turn that may be its answer
  std::string place_;               // the name of the item that is read
  size_t messages_ = 0;
  Status status_;
};

// first: the first item of the request itself; those before it are of previous responses.
std::string place_of(size_t index, size_t first) {
  return index < first ? fmt::format("stored item {}", index) : fmt::format("item {}", index - first);
}

std::string why_not(const Json& item, const std::string& place) {
  if (!item.is_object()) return fmt::format("{}: an item is an object", place);
  const std::string type = string_or(item, "type", "?").substr(0, 40);
  if (is_reference(item))
    return fmt::format(
        "{}: item_reference: no item with id '{}' is stored, or it is stored no longer: send the item "
        "itself, "
        "as clients do with store false",
        place, string_or(item, "id", "").substr(0, 80));
  return fmt::format(
      "{}: '{}' is no kind of item that is known here; messages, reasoning, calls and "
      "their outputs are",
      place, type);
}

}  // namespace

bool is_reference(const Json& item) {
  return string_or(item, "type", "item_reference") == "item_reference" && item.is_object() &&
         item.contains("id") && !item.contains("role");
}

Result<Conversation> read_input(Fields& fields, const Tools& tools, size_t first, Conversation conversation) {
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
    const std::string place = place_of(i, first);
    if (reader.add((*input)[i], place)) continue;
    fields.refuse("input", why_not((*input)[i], place));
    return conversation;
  }
  if (string_or(input->back(), "type", "") == "compaction_trigger")
    fields.refuse("input",
                  "a compaction_trigger asks for a shorter conversation, which is not made here: ask for "
                  "a summary in a message");
  if (reader.messages() == 0) fields.refuse("input", "holds nothing that the model could read");
  RETURN_IF_ERROR(check_message_count(reader.messages(), "input"));
  RETURN_IF_ERROR(reader.status());
  return conversation;
}

}  // namespace moesaic::openai
