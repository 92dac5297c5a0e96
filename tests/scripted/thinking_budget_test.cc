// A model that would think for longer than its request lets it, in each of the four APIs, by every name that
// a budget has.
#include <gtest/gtest.h>

#include <map>

#include "four_apis.h"

namespace moesaic::scripted {
namespace {

const std::string kThinks = "<|channel|>analysis<|message|>";
const std::string kWayOut = "<|end|><|start|>assistant<|channel|>final<|message|>";
const std::string kWayToCall = "<|end|><|start|>assistant<|channel|>commentary to=functions";

class Budgets : public testing::Test {
 protected:
  static ScriptedServer& server() {
    static ScriptedServer instance;
    return instance;
  }
  static std::vector<int32_t> tokens_of(const std::string& script) {
    static const ScriptedBackend backend{tokenizer()};
    return backend.tokens_of(script);
  }
  static int count(const std::string& script) { return static_cast<int>(tokens_of(script).size()); }
  // So many tokens, each a letter.
  static std::string letters(int tokens) {
    std::string text;
    for (int i = 0; i < tokens; ++i) text += std::string("x") + kCut;
    return text;
  }
  // A script that thinks on for so many tokens as are said in its place, and then goes on as is told.
  static std::string interrupted(int budget, const std::string& way, const std::string& rest) {
    return kThinks + kCut + letters(budget + count(way)) + rest;
  }
  static Said said(int budget, const std::string& rest) {
    return {.reasoning = std::string(static_cast<size_t>(budget), 'x'),
            .content = rest,
            .calls = {},
            .finish = "stop",
            .tokens = count(kThinks) + budget + count(kWayOut) + count(rest + kCut + "<|return|>")};
  }
  static Said ask(const ScriptedServer& server, const Api& api, const Question& question, const Json& fields,
                  bool stream) {
    Json body = api.body(question);
    body.update(fields);
    body["stream"] = stream;
    return stream ? api.streamed(server.post(api.path, body)) : api.whole(server.ask(api.path, body));
  }
};

std::vector<Json> names_of(const std::string& api, int budget) {
  if (api == "messages") return {{{"thinking", {{"type", "enabled"}, {"budget_tokens", budget}}}}};
  std::vector<Json> all;
  for (const char* name : {"thinking_token_budget", "reasoning_budget", "reasoning_budget_tokens",
                           "thinking_budget_tokens", "thinking_budget"})
    all.push_back({{name, budget}});
  all.push_back({{"reasoning", {{"max_tokens", budget}}}});
  all.push_back({{"thinking", {{"type", "enabled"}, {"budget_tokens", budget}}}});
  for (const char* name : {"thinking_budget", "reasoning_budget"})
    all.push_back({{"chat_template_kwargs", {{name, budget}}}});
  return all;
}

TEST_F(Budgets, HoldByEveryName) {
  const int budget = 5;
  const Question question{.script = interrupted(budget, kWayOut, "All done.<|return|>")};
  for (const Api& api : apis()) {
    if (std::string(api.name) == "ollama") continue;  // has no name for it
    for (const Json& fields : names_of(api.name, budget)) {
      for (const bool stream : {false, true}) {
        SCOPED_TRACE(testing::Message() << api.name << " " << fields.dump() << " " << stream);
        EXPECT_EQ(ask(server(), api, question, fields, stream), said(budget, "All done."));
      }
    }
  }
}

TEST_F(Budgets, AServersHoldsForAllThatNameNone) {
  const int budget = 3;
  const ScriptedServer limited({.reasoning_budget = budget});
  const Question question{.script = interrupted(budget, kWayOut, "All done.<|return|>")};
  for (const Api& api : apis()) {
    SCOPED_TRACE(api.name);
    for (const bool stream : {false, true})
      EXPECT_EQ(ask(limited, api, question, Json::object(), stream), said(budget, "All done."));
  }
  const Said free = ask(limited, apis()[0], question, {{"reasoning_budget", -1}}, false);
  EXPECT_EQ(free.content, "");
  EXPECT_EQ(free.tokens, count(question.script));
}

TEST_F(Budgets, AnAnswerThatIsCutOffIsABeginning) {
  const int budget = 2;
  for (const Api& api : apis()) {
    if (std::string(api.name) == "ollama") continue;
    SCOPED_TRACE(api.name);
    const Json fields = names_of(api.name, budget)[0];
    const Said all = said(budget, "All done.");
    for (int limit = 1; limit < all.tokens; ++limit) {
      const Question question{.script = interrupted(budget, kWayOut, "All done.<|return|>"), .limit = limit};
      const Said cut = ask(server(), api, question, fields, false);
      EXPECT_TRUE(begins(cut, all)) << cut;
      EXPECT_EQ(cut.tokens, limit);
      EXPECT_EQ(cut.finish, "length");
      EXPECT_EQ(ask(server(), api, question, fields, true), cut);
    }
  }
}

TEST_F(Budgets, WithoutAnyTheAnswerBegins) {
  const std::string begin = "<|channel|>final<|message|>";
  const std::string thinks =
      kThinks + "All done.<|return|>";  // its first tokens are as many as those of `begin`
  ASSERT_EQ(count(kThinks), count(begin));
  const std::string calls = "<|channel|>commentary to=functions.read<|message|>{\"path\": \"a\"}<|call|>";
  for (const Api& api : apis()) {
    if (std::string(api.name) == "ollama") continue;
    SCOPED_TRACE(api.name);
    const Json none = names_of(api.name, 0)[0];
    for (const bool stream : {false, true}) {
      const Said answer = ask(server(), api, {.script = thinks}, none, stream);
      EXPECT_EQ(answer.reasoning, "");
      EXPECT_EQ(answer.content, "All done.");
      EXPECT_EQ(answer.tokens, count(thinks));
      const Said call = ask(server(), api, {.script = calls}, none, stream);
      ASSERT_EQ(call.calls.size(), 1u);
      EXPECT_EQ(call.finish, "tool_calls");
    }
  }
}

TEST_F(Budgets, ACallThatIsDemandedIsMade) {
  const int budget = 4;
  const std::string call = ".read<|message|>{\"path\": \"a\"}<|call|>";
  const Question question{.script = interrupted(budget, kWayToCall, call)};
  const std::map<std::string, std::vector<Json>> choices = {
      {"chat", {"required", {{"type", "function"}, {"function", {{"name", kRead}}}}}},
      {"responses", {"required", {{"type", "function"}, {"name", kRead}}}},
      {"messages", {{{"type", "any"}}, {{"type", "tool"}, {"name", kRead}}}}};
  for (const Api& api : apis()) {
    if (!choices.contains(api.name)) continue;
    for (const Json& choice : choices.at(api.name)) {
      SCOPED_TRACE(testing::Message() << api.name << choice.dump());
      Json fields = names_of(api.name, budget)[0];
      fields["tool_choice"] = choice;
      for (const bool stream : {false, true}) {
        const Said answer = ask(server(), api, question, fields, stream);
        EXPECT_EQ(answer.reasoning, "xxxx");
        EXPECT_EQ(answer.content, "");
        ASSERT_EQ(answer.calls.size(), 1u) << answer;
        EXPECT_EQ(answer.calls[0].first, kRead);
        EXPECT_EQ(Json::parse(answer.calls[0].second), (Json{{"path", "a"}}));
        EXPECT_EQ(answer.tokens, count(kThinks) + budget + count(kWayToCall) + count(call));
      }
    }
  }
}

// The tokens there are, those that the model would have said in their place, and how many were thought.
TEST_F(Budgets, TheWayOutIsMadeOfTokensLikeOthers) {
  const int budget = 2;
  Json body = apis()[0].body({.script = interrupted(budget, kWayOut, "ok<|return|>")});
  body.update({{"reasoning_budget", budget}, {"return_token_ids", true}, {"logprobs", true}});
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "string"}}}}}};
  body.erase("tools");
  body["messages"][0]["content"] = std::string(kSay) + interrupted(budget, kWayOut, "\"ok\"<|return|>");
  const Json answer = server().ask("/v1/chat/completions", body);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "\"ok\"");
  EXPECT_EQ(choice["token_ids"].get<std::vector<int32_t>>(),
            tokens_of(kThinks + kCut + letters(budget) + kWayOut + "\"ok\"<|return|>"));
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], budget);
}

TEST_F(Budgets, HoldForAHarmonyPromptOfCompletions) {
  const int budget = 3;
  std::vector<int32_t> prompt = tokens_of("<|start|>user<|message|>");
  const std::string script = std::string(kSay) + interrupted(budget, kWayOut, "ok<|return|>");
  const std::vector<int32_t> text = tokenizer().encode(script, false),
                             end = tokens_of("<|end|><|start|>assistant");
  prompt.insert(prompt.end(), text.begin(), text.end());
  prompt.insert(prompt.end(), end.begin(), end.end());
  const Json body = {{"prompt", prompt},
                     {"max_tokens", 100},
                     {"temperature", 0},
                     {"reasoning_budget", budget},
                     {"skip_special_tokens", false}};
  const Json answer = server().ask("/v1/completions", body);
  EXPECT_EQ(answer["choices"][0]["text"], kThinks + "xxx" + kWayOut + "ok");
}

}  // namespace
}  // namespace moesaic::scripted
