// What a model writes, and what each of the four APIs must answer, whole and streamed, at every limit of
// tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "four_apis.h"

namespace moesaic::scripted {
namespace {

struct Row {
  const char* what;
  std::string writes;  // behind <|start|>assistant
  Said said;           // without finish and tokens
  std::vector<std::string> stop = {};
  bool one_call = false;
  // The part of `writes` that is generated; empty: all of it.
  std::string generated = {};
};

const std::string kHm = "<|channel|>analysis<|message|>hm \xE6\x97\xA5 hm<|end|><|start|>assistant";

// Rows whose answers are the same in all four APIs. A call's arguments are as the model wrote them; APIs that
// give them as an object have {"arguments": text} for what is none.
std::vector<Row> rows() {
  return {
      {"an answer",
       kHm + "<|channel|>final<|message|>All done.<|return|>",
       {"hm \xE6\x97\xA5 hm", "All done."}},
      {"a call",
       kHm +
           "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"path\": \"a b\"}<|call|>",
       {"hm \xE6\x97\xA5 hm", "", {{"read", "{\"path\": \"a b\"}"}}}},
      {"a call, its recipient before the channel",
       " to=functions.read<|channel|>commentary <|constrain|>json<|message|>{\"path\": 1}<|call|>",
       {"", "", {{"read", "{\"path\": 1}"}}}},
      {"a preamble and a call",
       "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant "
       "to=functions.get_time<|channel|>commentary"
       "<|message|>{}<|call|>",
       {"", "I look.", {{"get_time", "{}"}}}},
      {"two calls",
       "<|channel|>commentary to=functions.read<|message|>{\"path\": "
       "1}<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.read<|message|>{\"path\": 2}<|call|>",
       {"", "", {{"read", "{\"path\": 1}"}, {"read", "{\"path\": 2}"}}}},
      {"a stop string",
       kHm + "<|channel|>final<|message|>one two three<|return|>",
       {"hm \xE6\x97\xA5 hm", "one "},
       {"two"},
       false,
       kHm + "<|channel|>final<|message|>one two"},
  };
}

class Answers : public testing::Test {
 protected:
  static ScriptedServer& server() {
    static ScriptedServer instance;
    return instance;
  }
  static int tokens_in(const std::string& script) {
    static const ScriptedBackend backend{tokenizer()};
    return static_cast<int>(backend.tokens_of(script).size());
  }

  static Said wanted(const Row& row, const Api& api) {
    Said said = row.said;
    said.finish = said.calls.empty() ? "stop" : "tool_calls";
    said.tokens = tokens_in(row.generated.empty() ? row.writes : row.generated);
    for (auto& [name, arguments] : said.calls) {
      if (!api.objects) continue;
      const Json json = Json::parse(arguments, nullptr, false);
      arguments = (json.is_object() ? json : Json{{"arguments", arguments}}).dump();
    }
    return said;
  }
  static void expect(const Row& row, const Api& api) {
    const Question question{.script = row.writes, .stop = row.stop, .one_call = row.one_call};
    EXPECT_EQ(api.ask(server(), question, false), wanted(row, api));
    EXPECT_EQ(api.ask(server(), question, true), wanted(row, api));
  }
  static void expect_beginnings(const Row& row, const Api& api) {
    const Said all = wanted(row, api);
    for (int limit = 1; limit < all.tokens; ++limit) {
      SCOPED_TRACE(testing::Message() << limit << " tokens");
      const Question question{
          .script = row.writes, .limit = limit, .stop = row.stop, .one_call = row.one_call};
      const Said cut = api.ask(server(), question, false);
      EXPECT_TRUE(begins(cut, all)) << cut;
      EXPECT_EQ(cut.tokens, limit);
      EXPECT_EQ(cut.finish, "length");
      EXPECT_EQ(api.ask(server(), question, true), cut);
    }
  }
};

TEST_F(Answers, AreWhatTheModelWrote) {
  for (const Row& row : rows()) {
    for (const Api& api : apis()) {
      if (row.one_call && !api.can_limit_calls) continue;
      SCOPED_TRACE(testing::Message() << row.what << ", " << api.name << ": " << row.writes);
      expect(row, api);
    }
  }
}

TEST_F(Answers, AreABeginningOfTheWholeWhereTheyAreCutOff) {
  for (const Row& row : rows()) {
    for (const Api& api : apis()) {
      if (row.one_call && !api.can_limit_calls) continue;
      SCOPED_TRACE(testing::Message() << row.what << ", " << api.name << ": " << row.writes);
      expect_beginnings(row, api);
    }
  }
}

}  // namespace
}  // namespace moesaic::scripted
