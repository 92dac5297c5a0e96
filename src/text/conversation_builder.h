// Adds messages to a conversation in harmony's conventions: where instructions go, what channel a message
// without one belongs to, what a call and its result look like.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moesaic/conversation.h"

namespace moesaic {

// The end of the id of a call whose header has the recipient behind the channel (Message::recipient_last).
// With it the call comes back in the tokens in which it was written, and so from the prefix cache.
inline constexpr std::string_view kRecipientLast = "_rl";

class ConversationBuilder {
 public:
  // The conversation must outlive the builder.
  explicit ConversationBuilder(Conversation& conversation) : conversation_(conversation) {}

  // To be called before each message of an API whose messages hold several calls. A call takes the place of
  // an earlier message's with the same id; those of one message share it.
  void begin_message() { ++message_; }
  // A message of any role. The leading system and developer messages become the conversation's instructions.
  // An assistant's message without a channel is its final answer. A tool's result has the name that the call
  // with its call_id has, else its own. Of several calls it is the first without a result, if it can be of
  // the tool that the result names. A result without both is of a call without an id. Fails on unknown roles
  // and on results of unknown tools.
  Status add(Message message, const std::string& call_id = {});
  void add_reasoning(std::string text);
  // A call of a function, with or without "functions." before its name. arguments: JSON.
  Status add_call(const std::string& id, const std::string& function, std::string arguments);
  // The same of a tool that takes text.
  Status add_custom_call(const std::string& id, const std::string& tool, std::string input);

  // True if add() knows the tool of a result that has this id and no name.
  bool has_call(const std::string& id) const;
  // The tool of the first call that has no result yet, else of the last call; empty: there is none.
  std::string next_tool() const;

 private:
  void add_instructions(Message message);
  Status push_call(const std::string& id, const std::string& name, Message message);
  Status add_tool_result(Message message, const std::string& call_id);
  void push(Message message) { conversation_.messages.push_back(std::move(message)); }

  struct Call {
    std::string id, tool;
    size_t message;
  };
  // The first open call of a key (keys_of in the .cpp); null: there is none.
  const Call* first_open(const std::string& key) const;
  void close(const Call& call);

  Conversation& conversation_;
  size_t message_ = 0;
  std::map<std::string, std::string> last_tool_;   // by key: the last call's
  std::vector<Call> calls_;                        // all of the turn
  std::set<std::pair<std::string, size_t>> open_;  // calls without a result: key, place in calls_
  bool turn_ended_ = false;                        // by a result or a user: the next call begins another
};

// The last message, the assistant's, has not ended: with its text, or where that is empty with the thought
// before it, the answer goes on.
void leave_open(Conversation& conversation);
// The same for APIs whose conversations may end with the assistant's message, always to be continued. An
// empty one is taken away, and an answer of its own begins, as it does behind calls.
void leave_open_if_assistant(Conversation& conversation);

}  // namespace moesaic
