#include "text/harmony.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/harmony_tools.h"

namespace moesaic {
namespace {

constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};

// Collects tokens and the first error.
class TokenWriter {
 public:
  TokenWriter(const Tokenizer& tokenizer, const TokenLimit& limit) : tokenizer_(tokenizer), limit_(limit) {}

  // True if all that is written further on is of no use.
  bool full() const { return !status_.ok() || limit_.reached(tokens_.size()); }

  void special(std::string_view name) {
    if (const auto id = tokenizer_.special_id(name)) {
      tokens_.push_back(*id);
    } else if (status_.ok()) {
      status_ =
          error(StatusCode::kUnsupported, "the tokenizer has no {}: its model does not speak harmony", name);
    }
  }
  void text(std::string_view text) {
    if (full()) return;
    const TokenLimit rest{.most = limit_.most - tokens_.size(), .cancel = limit_.cancel};
    Result<std::vector<int32_t>> encoded = tokenizer_.try_encode(text, false, rest);
    if (encoded.ok()) {
      tokens_.insert(tokens_.end(), encoded.value().begin(), encoded.value().end());
    } else if (status_.ok()) {
      status_ = encoded.status();
    }
  }
  Result<std::vector<int32_t>> take() {
    if (!status_.ok()) return status_;
    if (limit_.cancel.stop_requested()) return error(StatusCode::kCancelled, "cancelled");
    if (tokens_.size() > limit_.most) tokens_.resize(limit_.most + 1);
    return std::move(tokens_);
  }

 private:
  const Tokenizer& tokenizer_;
  const TokenLimit& limit_;
  std::vector<int32_t> tokens_;
  Status status_;
};

bool is_constrained(const Message& message) { return message.content_type.starts_with(kConstrain); }

// A space comes first, but before a constrained type the caller has written it.
void write_content_type(const Message& message, TokenWriter& writer) {
  const std::string& type = message.content_type;
  if (is_constrained(message)) {
    writer.special(kConstrain);
    writer.text(std::string_view(type).substr(kConstrain.size()));
  } else if (!type.empty()) {
    writer.text(" " + type);
  }
}

// The message without its end. The pieces are encoded one by one, as the reference does: that decides the
// tokens. The header of a call in the order in which models mostly write it is encoded as a whole, as theirs
// is.
void write_open_message(const Message& message, TokenWriter& writer) {
  writer.special("<|start|>");
  writer.text(message.role == "tool" ? message.name : message.role);
  if (message.role != "tool" && !message.name.empty()) writer.text(":" + message.name);
  const bool named = !message.recipient.empty() && message.recipient != "all",
             last = named && message.recipient_last && !message.channel.empty();
  const std::string_view space = is_constrained(message) ? " " : "";
  if (named && !last) writer.text(" to=" + message.recipient);
  if (!message.channel.empty()) writer.special("<|channel|>");
  if (last) {
    writer.text(fmt::format("{} to={}{}", message.channel, message.recipient, space));
  } else {
    writer.text(message.channel);
    writer.text(space);
  }
  write_content_type(message, writer);
  writer.special("<|message|>");
  writer.text(message.text);
}

void write_message(const Message& message, TokenWriter& writer) {
  write_open_message(message, writer);
  writer.special(message.role == "assistant" && !message.recipient.empty() ? "<|call|>" : "<|end|>");
}

// Analysis before this index is not rendered: the index of the last final answer that has ended.
size_t forgotten_before(const Conversation& conversation) {
  const std::vector<Message>& messages = conversation.messages;
  const auto end = messages.rbegin() + (conversation.continues ? 1 : 0);
  const auto last = std::find_if(end, messages.rend(), [](const Message& message) {
    return message.role == "assistant" && message.channel == "final";
  });
  return messages.rend() - last;
}

Status check_continues(const Conversation& conversation) {
  if (!conversation.continues) return {};
  const std::vector<Message>& messages = conversation.messages;
  if (messages.empty() || messages.back().role != "assistant")
    return invalid("the last message is not the assistant's: it cannot be continued");
  if (!messages.back().recipient.empty())
    return invalid("the last message calls a tool: it cannot be continued");
  if (messages.back().text.empty()) return invalid("the last message has no text to be continued");
  return {};
}

Status check_message(const Message& message, size_t index) {
  if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end())
    return invalid("message {}: role '{}' is none of system, developer, user, assistant, tool", index,
                   message.role.substr(0, 40));
  if (message.role == "tool" && message.name.empty())
    return invalid("message {}: a tool message needs the tool's name", index);
  return {};
}

// The text of openai/harmony's docs/format.md, "Structured output".
std::string format_text(const ResponseFormat& format) {
  const std::string comment = format.description.empty() ? "" : "// " + format.description + "\n";
  return fmt::format("# Response Formats\n\n## {}\n\n{}{}", format.name, comment, format.schema_json);
}

Status write_preamble(const Conversation& conversation, TokenWriter& writer) {
  const bool own_system = !conversation.messages.empty() && conversation.messages[0].role == "system";
  if (own_system) {
    write_message(conversation.messages[0], writer);
  } else {
    write_message({.role = "system", .text = system_text(conversation)}, writer);
  }
  if (conversation.instructions.empty() && conversation.tools.empty() &&
      conversation.format.schema_json.empty())
    return {};
  ASSIGN_OR_RETURN(std::string text, developer_text(conversation));
  write_message({.role = "developer", .text = std::move(text)}, writer);
  return {};
}

}  // namespace

const char* effort_name(ReasoningEffort effort) {
  constexpr const char* kNames[] = {"low", "medium", "high"};
  return kNames[static_cast<int>(effort)];
}

std::optional<ReasoningEffort> effort_of(std::string_view name) {
  for (const auto effort : {ReasoningEffort::kLow, ReasoningEffort::kMedium, ReasoningEffort::kHigh}) {
    if (name == effort_name(effort)) return effort;
  }
  return {};
}

std::string system_text(const Conversation& conversation) {
  std::string text = conversation.model_identity;
  const auto add_line = [&](const char* label, const std::string& value) {
    if (!value.empty()) text += fmt::format("{}{}{}", text.empty() ? "" : "\n", label, value);
  };
  add_line("Knowledge cutoff: ", conversation.knowledge_cutoff);
  add_line("Current date: ", conversation.current_date);
  if (!text.empty()) text += "\n\n";
  text += fmt::format(
      "Reasoning: {}\n\n# Valid channels: analysis, commentary, final. Channel must be included for every "
      "message.",
      effort_name(conversation.reasoning_effort));
  if (!conversation.tools.empty())
    text += "\nCalls to these tools must go to the commentary channel: 'functions'.";
  return text;
}

Result<std::string> developer_text(const Conversation& conversation) {
  std::string text;
  const auto add = [&](const std::string& section) { text += (text.empty() ? "" : "\n\n") + section; };
  if (!conversation.instructions.empty()) add("# Instructions\n\n" + conversation.instructions);
  if (!conversation.tools.empty()) {
    ASSIGN_OR_RETURN(const std::string tools, render_tools(conversation.tools));
    add(tools);
  }
  if (!conversation.format.schema_json.empty()) add(format_text(conversation.format));
  return text;
}

Result<std::vector<int32_t>> render_conversation(const Conversation& conversation, const Tokenizer& tokenizer,
                                                 const TokenLimit& limit) {
  RETURN_IF_ERROR(check_continues(conversation));
  TokenWriter writer(tokenizer, limit);
  RETURN_IF_ERROR(write_preamble(conversation, writer));
  const size_t forgotten = forgotten_before(conversation);
  const size_t ended = conversation.messages.size() - (conversation.continues ? 1 : 0);
  for (size_t i = 0; i < ended && !writer.full(); ++i) {
    const Message& message = conversation.messages[i];
    RETURN_IF_ERROR(check_message(message, i));
    const bool is_preamble = i == 0 && message.role == "system";
    const bool thought = i < forgotten && message.channel == "analysis";
    if (!is_preamble && !thought) write_message(message, writer);
  }
  if (conversation.continues) {
    write_open_message(conversation.messages.back(), writer);
    return writer.take();
  }
  writer.special("<|start|>");
  writer.text("assistant");
  return writer.take();
}

}  // namespace moesaic
