#include "text/conversation_builder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr size_t kMostOpen = 512;  // calls whose results are awaited: each result looks through them

std::string qualified(const std::string& function) {
  return function.starts_with("functions.") ? function : "functions." + function;
}

}  // namespace

Status ConversationBuilder::add(Message message, const std::string& call_id) {
  if (message.role == "function") message.role = "tool";  // as tools were called before there were several
  if (message.role == "tool") return add_tool_result(std::move(message), call_id);
  if (message.role == "system" || message.role == "developer") {
    add_instructions(std::move(message));
    return {};
  }
  if (message.role != "user" && message.role != "assistant")
    return invalid("role '{}' is none of system, developer, user, assistant, tool",
                   message.role.substr(0, 40));
  if (message.role == "user") open_.clear();
  if (message.role == "assistant" && message.channel.empty())
    message.channel = message.recipient.empty() ? "final" : "commentary";
  push(std::move(message));
  return {};
}

void ConversationBuilder::add_reasoning(std::string text) {
  push({.role = "assistant", .channel = "analysis", .text = std::move(text)});
}

void ConversationBuilder::add_instructions(Message message) {
  std::string& instructions = conversation_.instructions;
  if (conversation_.messages.empty()) {
    instructions += (instructions.empty() ? "" : "\n\n") + message.text;
    return;
  }
  message.role = "developer";
  message.text = "# Instructions\n\n" + message.text;
  push(std::move(message));
}

Status ConversationBuilder::add_call(const std::string& id, const std::string& function,
                                     std::string arguments) {
  return push_call(id, function,
                   {.content_type = "<|constrain|>json",
                    .text = std::move(arguments),
                    .recipient_last = id.ends_with(kRecipientLast)});
}

Status ConversationBuilder::add_custom_call(const std::string& id, const std::string& tool,
                                            std::string input) {
  return push_call(id, tool, {.text = std::move(input)});
}

Status ConversationBuilder::push_call(const std::string& id, const std::string& name, Message message) {
  if (name.empty()) return invalid("a tool call has no name");
  message.recipient = qualified(name);
  if (!id.empty()) tool_of_call_[id] = message.recipient;
  open_.push_back({id, message.recipient});
  if (open_.size() > kMostOpen) open_.pop_front();
  message.role = "assistant";
  message.channel = "commentary";
  push(std::move(message));
  return {};
}

bool ConversationBuilder::has_call(const std::string& id) const {
  return tool_of_call_.contains(id) || std::ranges::count(open_, id, &OpenCall::id) > 0;
}

Status ConversationBuilder::add_tool_result(Message message, const std::string& call_id) {
  const auto known = tool_of_call_.find(call_id);
  const bool by_name = known == tool_of_call_.end() && !message.name.empty();
  const auto call = by_name ? std::ranges::find(open_, qualified(message.name), &OpenCall::tool)
                            : std::ranges::find(open_, call_id, &OpenCall::id);
  if (!by_name && call != open_.end()) {
    message.name = call->tool;
  } else if (known != tool_of_call_.end()) {
    message.name = known->second;
  }
  if (call != open_.end()) open_.erase(call);
  if (message.name.empty())
    return invalid("a tool message needs a name, or the tool_call_id of an earlier call");
  if (message.name.find('.') == std::string::npos) message.name = qualified(message.name);
  if (message.channel.empty()) message.channel = "commentary";
  if (message.recipient.empty()) message.recipient = "assistant";
  push(std::move(message));
  return {};
}

void leave_open(Conversation& conversation) {
  std::vector<Message>& messages = conversation.messages;
  conversation.continues = true;
  if (messages.size() < 2 || messages.back().channel != "final" || !messages.back().text.empty()) return;
  if (messages.end()[-2].channel == "analysis") messages.pop_back();
}

void leave_open_if_assistant(Conversation& conversation) {
  leave_open(conversation);
  std::vector<Message>& messages = conversation.messages;
  conversation.continues =
      !messages.empty() && messages.back().role == "assistant" && messages.back().recipient.empty();
  if (!conversation.continues || !messages.back().text.empty()) return;
  messages.pop_back();
  conversation.continues = false;
}

}  // namespace moesaic
