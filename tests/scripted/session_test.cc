// Agents' sessions: a conversation only grows, and what the rule on old thoughts leaves of a prompt comes
// from the prefix cache.
#include <gtest/gtest.h>

#include <memory>

#include "scripted_server.h"

namespace moesaic::scripted {
namespace {

constexpr int kTurns = 5, kCalls = 3;  // calls of a turn: 20 requests

struct Used {
  int prompt = 0, cached = 0;
  int generated = 0;
};

// One API's way to hold a session: what is said is added, and an answer joins the history.
class Session {
 public:
  explicit Session(const ScriptedServer& server) : server_(server) {}
  virtual ~Session() = default;
  virtual void user(const std::string& text) = 0;
  virtual void result(const std::string& text) = 0;  // answers the last answer's call
  virtual Used go_on() = 0;

 protected:
  const ScriptedServer& server_;
  Json history_ = Json::array();
};

const Json kPathParameters = {{"type", "object"}, {"properties", {{"path", {{"type", "string"}}}}}};

class ChatSession final : public Session {
 public:
  using Session::Session;
  void user(const std::string& text) override { history_.push_back({{"role", "user"}, {"content", text}}); }
  void result(const std::string& text) override {
    history_.push_back({{"role", "tool"}, {"tool_call_id", call_}, {"content", text}});
  }
  Used go_on() override {
    const Json tool = {{"type", "function"},
                       {"function", {{"name", "read"}, {"parameters", kPathParameters}}}};
    const Json answer = server_.ask(
        "/v1/chat/completions", {{"messages", history_}, {"tools", Json::array({tool})}, {"temperature", 0}});
    const Json& message = answer["choices"][0]["message"];
    if (message.contains("tool_calls")) call_ = message["tool_calls"][0]["id"];
    history_.push_back(message);
    return {answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            answer["usage"]["completion_tokens"]};
  }

 private:
  std::string call_;
};

class ResponsesSession final : public Session {
 public:
  ResponsesSession(const ScriptedServer& server, bool stored) : Session(server), stored_(stored) {}
  void user(const std::string& text) override { history_.push_back({{"role", "user"}, {"content", text}}); }
  void result(const std::string& text) override {
    history_.push_back({{"type", "function_call_output"}, {"call_id", call_}, {"output", text}});
  }
  Used go_on() override {
    const Json tool = {{"type", "function"}, {"name", "read"}, {"parameters", kPathParameters}};
    Json body = {{"input", history_}, {"tools", Json::array({tool})}, {"temperature", 0}};
    if (!before_.empty()) body["previous_response_id"] = before_;
    const Json answer = server_.ask("/v1/responses", body);
    if (stored_) before_ = answer["id"], history_.clear();
    for (const Json& item : answer["output"]) {
      if (!stored_) history_.push_back(item);
      if (item["type"] == "function_call") call_ = item["call_id"];
    }
    return {answer["usage"]["input_tokens"], answer["usage"]["input_tokens_details"]["cached_tokens"],
            answer["usage"]["output_tokens"]};
  }

 private:
  bool stored_;
  std::string call_, before_;
};

class MessagesSession final : public Session {
 public:
  using Session::Session;
  void user(const std::string& text) override { history_.push_back({{"role", "user"}, {"content", text}}); }
  void result(const std::string& text) override {
    const Json block = {{"type", "tool_result"}, {"tool_use_id", call_}, {"content", text}};
    history_.push_back({{"role", "user"}, {"content", Json::array({block})}});
  }
  Used go_on() override {
    const Json tool = {{"name", "read"}, {"input_schema", kPathParameters}};
    const Json answer = server_.ask("/v1/messages", {{"model", "scripted"},
                                                     {"messages", history_},
                                                     {"tools", Json::array({tool})},
                                                     {"thinking", {{"type", "adaptive"}}},
                                                     {"temperature", 0},
                                                     {"max_tokens", 1000}});
    history_.push_back({{"role", "assistant"}, {"content", answer["content"]}});
    for (const Json& block : answer["content"])
      if (block["type"] == "tool_use") call_ = block["id"];
    const Json& usage = answer["usage"];
    const int cached = usage["cache_read_input_tokens"];
    return {usage["input_tokens"].get<int>() + usage["cache_creation_input_tokens"].get<int>() + cached,
            cached, usage["output_tokens"]};
  }

 private:
  std::string call_;
};

std::string step(int turn, int call) {
  const std::string number = std::to_string(turn) + "." + std::to_string(call);
  const std::string thought =
      "<|channel|>analysis<|message|>Step " + number +
      ": there are several files, and the next one to look at is of this number.<|end|>";
  if (call == kCalls)
    return kSay.data() + thought + "<|start|>assistant<|channel|>final<|message|>It is " + number +
           ".<|return|>";
  return kSay.data() + thought + "<|start|>assistant<|channel|>commentary<|message|>I read " + number +
         ".<|end|><|start|>assistant<|channel|>commentary to=functions.read "
         "<|constrain|>json<|message|>{\"path\":\"" +
         number + "\"}<|call|>";
}

// Checks the prefixes of 20 requests. Within a turn the prompt before and its answer are the beginning of the
// next one. With a new turn the thoughts of the one before are left out: what stays is that turn's first
// prompt.
void expect_prefixes(Session& session) {
  int before = 0, first_of_turn = 0;
  std::string table;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int call = 0; call <= kCalls; ++call) {
      call == 0 ? session.user(step(turn, call)) : session.result(step(turn, call));
      const Used used = session.go_on();
      const int stays = call == 0 ? first_of_turn : before;
      table += "turn " + std::to_string(turn) + ", request " + std::to_string(call) + ": prompt " +
               std::to_string(used.prompt) + " tokens, from the cache " + std::to_string(used.cached) +
               ", the same as before " + std::to_string(stays) + "\n";
      EXPECT_GE(used.cached, stays / kPageTokens * kPageTokens) << table;
      EXPECT_GT(used.prompt, stays) << table;
      before = used.prompt + used.generated - 1;  // the token that ends it is not computed
      if (call == 0) first_of_turn = used.prompt;
    }
  }
  if (std::getenv("MOESAIC_SHOW") != nullptr) std::cout << table;
}

TEST(Sessions, Chat) {
  const ScriptedServer server;
  ChatSession session(server);
  expect_prefixes(session);
}

TEST(Sessions, Responses) {
  const ScriptedServer server;
  ResponsesSession session(server, false);
  expect_prefixes(session);
}

TEST(Sessions, StoredResponses) {
  const ScriptedServer server;
  ResponsesSession session(server, true);
  expect_prefixes(session);
}

TEST(Sessions, Messages) {
  const ScriptedServer server;
  MessagesSession session(server);
  expect_prefixes(session);
}

}  // namespace
}  // namespace moesaic::scripted
