#include "anthropic/messages_input.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "openai/argument_style.h"
#include "openai/sealed_reasoning.h"
#include "openai/sse.h"
#include "text/conversation_builder.h"
#include "text/harmony_json.h"
#include "text/utf8.h"

namespace moesaic::anthropic {
namespace {

using openai::Json;
using text::member;
using text::string_or;

constexpr const char* kName = "messages";
constexpr std::string_view kForTheService = "x-anthropic-billing-header:";
// Blocks that only the server which made them can read, or that say nothing to a model.
constexpr std::array<std::string_view, 3> kUnsaid = {"redacted_thinking", "fallback", "mcp_tool_listing"};

// Fails on what is no block, and on a block with a member that should be a string and is not.
Status check_block(const Json& block) {
  if (!block.is_object() || !member(block, "type").is_string())
    return invalid("a block is not an object with a type");
  RETURN_IF_ERROR(text::check_strings(block, {"text", "thinking", "id", "name", "tool_use_id", "tool_name"}));
  if (block["type"] == "text" && !member(block, "text").is_string())
    return invalid("a text block has no text");
  return {};
}

Status unreadable(const std::string& type) {
  return invalid(
      "a block of type '{}' is not supported: text, thinking, tool_use, tool_result, search_result and "
      "documents of text are",
      type.substr(0, 40));
}

// A call that a server answered by itself, or its result: server_tool_use, web_search_tool_result, ...; or
// its summary of what came before.
bool is_of_server(const std::string& type) {
  return type == "server_tool_use" || type == "mcp_tool_use" || type == "compaction" ||
         (type.ends_with("_tool_result") && type != "_tool_result");
}

// The message, the last of its conversation, ends with such a block: a new message follows it.
bool ends_with_server(const Json& message) {
  const Json& content = member(message, "content");
  return content.is_array() && !content.empty() && is_of_server(string_or(content.back(), "type", ""));
}

struct Place {
  size_t message = 0, block = 0;
};

// The last summary, which stands for all before it; else the beginning.
Place first_told(const Json& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const Json& content = member(messages[i], "content");
    for (size_t k = content.is_array() ? content.size() : 0; k-- > 0;) {
      const Json& block = content[k];
      if (string_or(block, "type", "") == "compaction" && !string_or(block, "content", "").empty())
        return {i, k};
    }
  }
  return {};
}

bool is_text_document(const Json& block) {
  const std::string source = string_or(member(block, "source"), "type", "");
  return string_or(block, "type", "") == "document" && (source == "text" || source == "content");
}

Result<std::string> source_text(const Json& source) {
  const bool plain = source["type"] == "text";
  const Json& given = member(source, plain ? "data" : "content");
  if (given.is_string()) return given.get<std::string>();
  if (plain || !given.is_array()) return invalid("a document's source has no text");
  std::string text;
  for (const Json& block : given) {
    RETURN_IF_ERROR(check_block(block));
    if (block["type"] != "text") return invalid("a document's content has a block that is not of type text");
    text += string_or(block, "text", "");
  }
  return text;
}

// A document whose source is text, with its title and context before it.
Result<std::string> document_text(const Json& block) {
  RETURN_IF_ERROR(text::check_strings(block, {"title", "context"}));
  if (member(member(block, "citations"), "enabled") == true)
    return invalid("a document's citations are not supported; leave them out");
  ASSIGN_OR_RETURN(const std::string source, source_text(block["source"]));
  std::string text = "<document>\n";
  for (const char* name : {"title", "context"}) {
    const std::string said = string_or(block, name, "");
    if (!said.empty()) text += fmt::format("<{0}>{1}</{0}>\n", name, said);
  }
  return text + source + "\n</document>";
}

// The value as the model reads it: notes stand for what it cannot read. Encrypted parts, which only the
// server that made them can read, and the marks of that server's cache are left out.
Json readable(const Json& value) {
  if (const std::string_view medium = text::medium_of(value); !medium.empty() && !is_text_document(value))
    return text::omitted(medium);
  if (!value.is_structured()) return value;
  Json all = value.is_array() ? Json::array() : Json::object();
  for (const auto& [key, one] : value.items()) {
    if (value.is_array()) {
      all.push_back(readable(one));
    } else if (!key.starts_with("encrypted_") && key != "cache_control") {
      all[key] = readable(one);
    }
  }
  return all;
}

// A line about a block that is_of_server(). A compaction that failed has none.
std::string line_of(const Json& block) {
  if (block["type"] == "compaction") return string_or(block, "content", "");
  Json said = readable(block);
  for (const char* unsaid : {"type", "id", "tool_use_id", "caller"}) said.erase(unsaid);
  return fmt::format("[{}: {}]", string_or(block, "type", ""), openai::dump(said));
}

// The text of a tool's result. A part that the model cannot read is named in its place.
Result<std::string> result_text(const Json& content) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    return invalid("a tool_result's content is neither a string nor an array of blocks");
  std::string text;
  for (const Json& block : content) {
    RETURN_IF_ERROR(check_block(block));
    const std::string type = string_or(block, "type", "?");
    if (type == "text") {
      text += string_or(block, "text", "");
    } else if (is_text_document(block)) {
      ASSIGN_OR_RETURN(const std::string document, document_text(block));
      text += document;
    } else if (const std::string_view medium = text::medium_of(block); !medium.empty()) {
      text += text::omitted(medium);
    } else if (type == "tool_reference") {
      text += string_or(block, "tool_name", "");
    } else if (type == "search_result" || type == "browser_state") {
      text += openai::dump(readable(block));
    } else {
      return unreadable(type);
    }
  }
  return text;
}

// One message's blocks, one after the other. Texts that follow each other are one.
class MessageReader {
 public:
  MessageReader(std::string role, text::Media media, ConversationBuilder& builder)
      : role_(std::move(role)), media_(media), builder_(builder) {}

  // first: block of an array.
  Status read(const Json& content, size_t first) {
    if (content.is_string()) {
      text_ = content.get<std::string>();
      return end();
    }
    if (!content.is_array()) return invalid("content is neither a string nor an array of blocks");
    for (size_t i = first; i < content.size(); ++i) RETURN_IF_ERROR(add(content[i]));
    return end();
  }

 private:
  // An answer of the assistant's may have been empty.
  Status end() {
    if (text_.empty() && !any_ && role_ == "user") return invalid("content is empty");
    return flush("final");
  }
  Status add(const Json& block) {
    RETURN_IF_ERROR(check_block(block));
    const std::string type = string_or(block, "type", "?");
    const bool assistant = role_ == "assistant";
    if (type == "text") return add_text(string_or(block, "text", ""));
    if (is_text_document(block) && !assistant) {
      ASSIGN_OR_RETURN(const std::string document, document_text(block));
      return add_text(document);
    }
    if (const std::string_view medium = text::medium_of(block);
        !medium.empty() && media_ == text::Media::kNoted)
      return add_text(text::omitted(medium));
    if (type == "search_result" && !assistant) return add_text(openai::dump(readable(block)));
    if (type == "tool_result" && !assistant) return add_result(block);
    if (type == "thinking" && assistant) return add_thinking(block);
    if (is_one_of(kUnsaid, type) && assistant) return {};
    if (type == "tool_use" && assistant) return add_call(block);
    if (is_of_server(type) && assistant) return add_line(line_of(block));
    return unreadable(type);
  }
  Status add_text(const std::string& text) {
    text_ += (text_.empty() || text.empty() ? "" : "\n\n") + text;
    return {};
  }
  // The signature holds a text that was omitted.
  Status add_thinking(const Json& block) {
    RETURN_IF_ERROR(flush("commentary"));
    std::string text = string_or(block, "thinking", "");
    if (text.empty())
      text = utf8_lossy(openai::unseal_reasoning(string_or(block, "signature", "")).value_or(""));
    if (!text.empty()) builder_.add_reasoning(std::move(text));
    return {};
  }
  Status add_call(const Json& block) {
    RETURN_IF_ERROR(flush("commentary"));
    const Json& input = member(block, "input");
    if (!input.is_null() && !input.is_object()) return invalid("a tool_use's input is not an object");
    const std::string id = string_or(block, "id", "");
    return builder_.add_call(id, string_or(block, "name", ""),
                             input.is_null() ? "{}" : openai::text_of_arguments(input, id));
  }
  Status add_line(std::string line) {
    RETURN_IF_ERROR(flush("commentary"));
    text_ = std::move(line);
    return flush("commentary");
  }
  Status add_result(const Json& block) {
    RETURN_IF_ERROR(flush(""));
    ASSIGN_OR_RETURN(std::string text, result_text(member(block, "content")));
    if (member(block, "is_error") == true) text = "Error: " + text;
    any_ = true;
    const std::string id = string_or(block, "tool_use_id", "");
    const Status added = builder_.add({.role = "tool", .text = std::move(text)}, id);
    return added.ok()
               ? added
               : invalid("a tool_result is of '{}', and no tool_use before it has this id", id.substr(0, 80));
  }
  // channel: of the assistant's text. What stands before a call or a thought is commentary.
  Status flush(const char* channel) {
    if (text_.empty()) return {};
    any_ = true;
    return builder_.add(
        {.role = role_, .channel = role_ == "assistant" ? channel : "", .text = std::exchange(text_, {})});
  }

  std::string role_, text_;
  text::Media media_;
  bool any_ = false;  // something was added to the conversation
  ConversationBuilder& builder_;
};

Status add_message(const Json& json, size_t first_block, bool is_question, ConversationBuilder& builder) {
  if (!json.is_object()) return invalid("not an object");
  const std::string role = string_or(json, "role", "");
  if (role != "user" && role != "assistant" && role != "system")
    return invalid("role '{}' is none of user, assistant, system", role.substr(0, 40));
  builder.begin_message();
  return MessageReader(role, text::media_of(json, is_question), builder)
      .read(member(json, "content"), first_block);
}

}  // namespace

Result<std::string> system_text(const Json& system) {
  if (system.is_null()) return std::string();
  if (system.is_string()) return system.get<std::string>();
  if (!system.is_array()) return invalid("system: must be a string or an array of text blocks");
  std::string text;
  for (const Json& block : system) {
    if (const Status status = check_block(block); !status.ok())
      return invalid("system: {}", status.message());
    if (block["type"] != "text") return invalid("system: a block is not of type text");
    const std::string one = string_or(block, "text", "");
    if (one.empty() || one.starts_with(kForTheService)) continue;
    text += (text.empty() ? "" : "\n\n") + one;
  }
  return text;
}

Result<Conversation> read_messages(const Json& messages, Conversation conversation) {
  RETURN_IF_ERROR(check_message_count(messages.size(), kName));
  ConversationBuilder builder(conversation);
  const bool continues = string_or(messages.back(), "role", "") == "assistant";
  const size_t question = text::question_of(messages, continues);
  const Place first = first_told(messages);
  for (size_t i = first.message; i < messages.size(); ++i) {
    const size_t block = i == first.message ? first.block : 0;
    if (const Status status = add_message(messages[i], block, i == question, builder); !status.ok())
      return invalid("{}: message {}: {}", kName, i, status.message());
  }
  if (!continues || ends_with_server(messages.back())) return conversation;
  if (!conversation.messages.empty() && !conversation.messages.back().recipient.empty())
    return invalid("{}: the last one calls a tool, and no tool_result follows", kName);
  leave_open_if_assistant(conversation);
  return conversation;
}

}  // namespace moesaic::anthropic
