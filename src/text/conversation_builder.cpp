#include "text/conversation_builder.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace moesaic {
namespace {

std::string qualified(const std::string& function) {
  return function.starts_with("functions.") ? function : "functions." + function;
}

// The names by which a result may find its call: none, the tool, the id, or both. tool: qualified, or empty.
std::array<std::string, 4> keys_of(const std::string& id, const std::string& tool) {
  const std::string by_id = fmt::format("{}:{}", id.size(), id);
  return {"", tool, by_id, by_id + tool};
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
  if (message.role == "user") turn_ended_ = true;
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
  if (std::exchange(turn_ended_, false)) calls_.clear(), open_.clear();
  const auto keys = keys_of(id, message.recipient);
  for (const Call* same = first_open(keys[2]); !id.empty() && same != nullptr && same->message != message_;
       same = first_open(keys[2]))
    close(*same);
  for (const std::string& key : keys) {
    last_tool_[key] = message.recipient;
    open_.emplace(key, calls_.size());
  }
  calls_.push_back({id, message.recipient, message_});
  message.role = "assistant";
  message.channel = "commentary";
  push(std::move(message));
  return {};
}

const ConversationBuilder::Call* ConversationBuilder::first_open(const std::string& key) const {
  const auto at = open_.lower_bound({key, 0});
  return at == open_.end() || at->first != key ? nullptr : &calls_[at->second];
}

void ConversationBuilder::close(const Call& call) {
  for (const std::string& key : keys_of(call.id, call.tool)) open_.erase({key, &call - calls_.data()});
}

bool ConversationBuilder::has_call(const std::string& id) const {
  return last_tool_.contains(keys_of(id, "")[2]);
}

std::string ConversationBuilder::next_tool() const {
  const auto last = last_tool_.find("");
  if (const Call* call = first_open("")) return call->tool;
  return last == last_tool_.end() ? "" : last->second;
}

Status ConversationBuilder::add_tool_result(Message message, const std::string& call_id) {
  const bool named = !message.name.empty();
  const auto [any, tool, id, both] = keys_of(call_id, named ? qualified(message.name) : "");
  const std::string& key = named && (call_id.empty() || !has_call(call_id)) ? tool
                           : last_tool_.contains(both)                      ? both
                                                                            : id;
  const auto last = last_tool_.find(key);
  if (const Call* call = first_open(key)) {
    message.name = call->tool;
    close(*call);
  } else if (last != last_tool_.end()) {
    message.name = last->second;
  }
  turn_ended_ = true;
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
