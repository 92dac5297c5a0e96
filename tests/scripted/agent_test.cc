// An agent's session of 200 turns in each API: what the model writes is given, some of it damaged, and
// whatever comes back joins the history of the next request, as clients do it.
#include <gtest/gtest.h>

#include <set>

#include "base/sanitizer.h"
#include "four_apis.h"

namespace moesaic::scripted {
namespace {

constexpr int kAgentTurns = kMemoryIsSanitized ? 60 : 200;  // each repeats those before
// One turn in 25 has a damaged header: of gpt-oss-20b's turns with opencode 1.1 to 4 percent had one
// (github.com/ggml-org/llama.cpp/issues/27720).
constexpr int kDamagedHeader = 25;
// One in 20 has arguments that are no JSON object, or calls what was not offered; no rate is published.
constexpr int kDamagedCall = 20;

const std::string kCall = "<|channel|>commentary to=functions.read";
const std::string kArguments = " <|constrain|>json<|message|>{\"path\":\"a\"}<|call|>";

// As users have reported them; the last one has a thought in the place of the channel.
std::string damaged_header(int which) {
  const std::vector<std::string> all = {
      kCall + "<|channel|>commentary" + kArguments,
      "<|channel|>commentary?? to=functions.read" + kArguments,
      kCall + " <|constrain|>json{\"path\":\"a\"}<|call|>",
      "<|channel|>commentary\xE2\x80\x93to=functions.read" + kArguments,
      " to=functions.read<|channel|>analysis" + kArguments,
      "<|channel|>analysis<|channel|>analysis<|message|>hm<|end|><|start|>assistant" + kCall + kArguments,
      "<|channel|>final<|constrain|>response<|message|>Done.<|return|>",
      "<|channel|>We should read this.<|end|><|start|>assistant" + kCall + kArguments};
  return all[static_cast<size_t>(which) % all.size()];
}

std::string damaged_call(int which) {
  const std::vector<std::string> all = {
      kCall + " <|constrain|>json<|message|>{\"path\":\"a<|call|>",
      kCall + " <|constrain|>json<|message|><|call|>",
      kCall + " <|constrain|>json<|message|>[1]<|call|>",
      "<|channel|>commentary to=functions.write <|constrain|>json<|message|>{}<|call|>",
      "<|channel|>commentary to=bash<|message|>ls<|call|>",
      kCall + "<|message|>{\"path\":1}<|end|><|start|>assistant" + kCall + kArguments};
  return all[static_cast<size_t>(which) % all.size()];
}

// A whole turn now and then ends with an answer, and the user asks again.
bool is_answer(int turn) { return turn % 10 == 9; }

std::string written(int turn) {
  if (turn % kDamagedHeader == 3) return damaged_header(turn / kDamagedHeader);
  if (turn % kDamagedCall == 5) return damaged_call(turn / kDamagedCall);
  const std::string number = std::to_string(turn);
  if (is_answer(turn)) return "<|channel|>final<|message|>It is " + number + ".<|return|>";
  return "<|channel|>analysis<|message|>So.<|end|><|start|>assistant" + kCall + "<|message|>{\"path\":\"" +
         number + "\"}<|call|>";
}

bool is_damaged(int turn) { return turn % kDamagedHeader == 3 || turn % kDamagedCall == 5; }

void expect_undamaged(const Said& said, int turn) {
  const std::string number = std::to_string(turn);
  if (is_answer(turn)) {
    EXPECT_EQ(said.content, "It is " + number + ".");
    EXPECT_TRUE(said.calls.empty()) << said;
    return;
  }
  ASSERT_EQ(said.calls.size(), 1U) << said;
  EXPECT_EQ(said.calls[0].first, kRead);
  EXPECT_EQ(Json::parse(said.calls[0].second), Json({{"path", number}}));
  EXPECT_EQ(said.reasoning, "So.");
}

class AgentSession : public testing::TestWithParam<size_t> {};

TEST_P(AgentSession, EndsWithoutAProtocolFailure) {
  const ScriptedServer server;
  const Api& api = apis()[GetParam()];
  Question question{.script = written(0)};
  std::set<std::string> ids;
  for (int turn = 0; turn < kAgentTurns; ++turn) {
    SCOPED_TRACE(testing::Message() << api.name << ", turn " << turn << ": " << written(turn));
    const Said said = api.ask(server, question, turn % 2 == 0);
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(said.finish, said.calls.empty() ? "stop" : "tool_calls") << said;
    for (const std::string* text : {&said.content, &said.reasoning})
      EXPECT_EQ(text->find("<|"), std::string::npos) << said;
    for (const std::string& id : said.ids) EXPECT_TRUE(ids.insert(id).second) << id;
    if (!is_damaged(turn)) expect_undamaged(said, turn);

    const std::string next = written(turn + 1);
    if (!question.script.empty())
      question.before.push_back({{"role", "user"}, {"content", std::string(kSay) + question.script}});
    api.add_answer(said, question.before);
    for (size_t i = 0; i < said.calls.size(); ++i)
      api.add_result(said, i, i + 1 == said.calls.size() ? std::string(kSay) + next : "ok", question.before);
    question.script = said.calls.empty() ? next : "";
  }
}

INSTANTIATE_TEST_SUITE_P(Apis, AgentSession, testing::Range<size_t>(0, apis().size()),
                         [](const auto& one) { return apis()[one.param].name; });

}  // namespace
}  // namespace moesaic::scripted
