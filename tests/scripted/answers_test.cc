// Scripts of a model's output, and the answer that each of the four APIs must give, whole and streamed, at
// every limit of tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/sanitizer.h"
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

const std::string kThought = "hm \xE6\x97\xA5 hm";
const std::string kHm = "<|channel|>analysis<|message|>" + kThought + "<|end|><|start|>assistant";
const std::string kCut1(1, kCut);

std::vector<Row> plain_rows() {
  return {
      {"an answer", kHm + "<|channel|>final<|message|>All done.<|return|>", {kThought, "All done."}},
      {"a call",
       kHm +
           "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"path\": \"a b\"}<|call|>",
       {kThought, "", {{"read", "{\"path\": \"a b\"}"}}}},
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
       kHm + "<|channel|>final<|message|>one tw" + kCut1 + "o three<|return|>",
       {kThought, "one "},
       {"two"},
       false,
       kHm + "<|channel|>final<|message|>one tw" + kCut1 + "o"},
  };
}

// Headers with parts repeated, garbled or left out.
std::vector<Row> header_rows() {
  const std::string read = "<|channel|>commentary to=functions.read";
  const std::string json = "{\"path\": \"a\"}",
                    arguments = " <|constrain|>json<|message|>" + json + "<|call|>";
  const std::string all_done = "<|end|><|start|>assistant<|channel|>final<|message|>All done.<|return|>";
  const Said call{"", "", {{"read", json}}};
  return {
      {"a channel again behind the recipient", read + "<|channel|>commentary" + arguments, call},
      {"a header three times", read + read + read + "<|channel|>commentary" + arguments, call},
      {"a content type again", read + " <|constrain|>json" + read + arguments, call},
      {"a recipient in both places", " to=functions.read" + read + arguments, call},
      {"another recipient", " to=functions.get_time" + read + arguments, call},
      {"no space between channel and recipient", "<|channel|>commentaryto=functions.read" + arguments, call},
      {"a channel glued to the recipient", "<|channel|>commentary to=functions.readcommentary" + arguments,
       call},
      {"a call without <|message|>", read + " <|constrain|>json" + json + "<|call|>", call},
      {"a call in an unknown channel", "<|channel|>tools to=functions.read" + arguments, call},
      {"a call without <|channel|>",
       kHm.substr(0, kHm.size() - 18) + "commentary to=functions.read" + arguments,
       {kThought, "", {{"read", json}}}},
      {"analysis twice",
       "<|channel|>analysis<|channel|>analysis<|message|>hm" + all_done,
       {"hm", "All done."}},
      {"analysis three times",
       "<|channel|>analysis<|channel|>analysis<|channel|>analysis<|message|>hm" + all_done,
       {"hm", "All done."}},
      {"analysis?", "<|channel|>analysis?<|message|>hm" + all_done, {"hm", "All done."}},
      {"an unknown channel", "<|channel|>thinking<|message|>hm" + all_done, {"hm", "All done."}},
      {"analysis without a start",
       "<|channel|>commentary<|message|>I look.<|end|>analysis<|message|>hm" + all_done,
       {"hm",
        "I look."
        "\n\n"
        "All done."}},
      {"text in the channel's word", "<|channel|>finalAll done.<|return|>", {"", "All done."}},
      {"and again", "<|channel|>final<|channel|>finalAll done.<|return|>", {"", "All done."}},
      {"marks in the channel's word", "<|channel|>final__X__<|return|>", {"", "__X__"}},
      {"a thought in the place of a channel",
       "<|channel|>We need to look at this." + all_done,
       {"We need to look at this.", "All done."}},
      {"a thought behind the channel", "<|channel|>analysisWe look." + all_done, {"We look.", "All done."}},
      {"a sentence between channel and message",
       "<|channel|>final Here it is:<|message|>42<|return|>",
       {"",
        "Here it is:"
        "\n\n"
        "42"}},
      {"no header at all", "All done.<|return|>", {"", "All done."}},
      {"text before the header",
       "I think so.<|channel|>final<|message|>yes<|return|>",
       {"I think so.", "yes"}},
      {"a header longer than any",
       "<|channel|>final" + std::string(150, 'x') + " end<|return|>",
       {"", std::string(150, 'x') + " end"}},
  };
}

// Several messages, calls without arguments or with others than an object, and what ends an answer early.
std::vector<Row> message_rows() {
  const std::string start = "<|start|>assistant", end = "<|end|>" + start;
  const std::string final = "<|channel|>final<|message|>", preamble = "<|channel|>commentary<|message|>";
  const std::string read = "<|channel|>commentary to=functions.read <|constrain|>json<|message|>";
  const std::string path1 = "{\"path\": 1}", path2 = "{\"path\": 2}";
  return {
      {"two answers", final + "one" + end + final + "two<|return|>", {"", "one\n\ntwo"}},
      {"two thoughts",
       kHm + "<|channel|>analysis<|message|>so" + end + final + "yes<|return|>",
       {kThought + "\n\nso", "yes"}},
      {"two preambles",
       preamble + "one" + end + preamble + "two" + end + read + path1 + "<|call|>",
       {"", "one\n\ntwo", {{"read", path1}}}},
      {"a preamble and an answer", preamble + "one" + end + final + "two<|return|>", {"", "one\n\ntwo"}},
      {"an answer, a thought, an answer",
       final + "one" + end + "<|channel|>analysis<|message|>hm" + end + final + "two<|return|>",
       {"hm", "one\n\ntwo"}},
      {"an empty message between two",
       final + "one" + end + final + end + final + "two<|return|>",
       {"", "one\n\ntwo"}},
      {"three calls",
       read + path1 + end + read + path2 + end + read + path1 + "<|call|>",
       {"", "", {{"read", path1}, {"read", path2}, {"read", path1}}}},
      {"one call where one is allowed",
       preamble + "one" + end + read + path1 + end + read + path2 + "<|call|>",
       {"", "one", {{"read", path1}}},
       {},
       true,
       preamble + "one" + end + read + path1 + "<|end|>"},
      {"one call of one that is offered",
       "<|channel|>analysis to=python<|message|>1" + end + read + path1 + end + read + path2 + "<|call|>",
       {"1", "", {{"read", path1}}},
       {},
       true,
       "<|channel|>analysis to=python<|message|>1" + end + read + path1 + "<|end|>"},
      {"an answer where one call is allowed",
       final + "one" + end + final + "two<|return|>",
       {"", "one\n\ntwo"},
       {},
       true},
      {"a call without arguments",
       "<|channel|>commentary to=functions.get_time<|message|><|call|>",
       {"", "", {{"get_time", "{}"}}}},
      {"white space for arguments",
       read + " \n " + end + read + path1 + "<|call|>",
       {"", "", {{"read", "{}"}, {"read", path1}}}},
      {"a call that is its header",
       "<|channel|>commentary to=functions.get_time <|constrain|>json<|call|>",
       {"", "", {{"get_time", "{}"}}}},
      {"arguments that are no object",
       read + "[1, 2]" + end + read + "a word" + end + read + "{\"path\": <|call|>",
       {"", "", {{"read", "[1, 2]"}, {"read", "a word"}, {"read", "{\"path\": "}}}},
      {"a stop string in a preamble",
       preamble + "one tw" + kCut1 + "o three" + end + read + path1 + "<|call|>",
       {"", "one "},
       {"two"},
       false,
       preamble + "one tw" + kCut1 + "o"},
      {"a stop string in a thought and a call",
       "<|channel|>analysis<|message|>two" + end + read + "{\"path\": \"two\"}" + "<|call|>",
       {"two", "", {{"read", "{\"path\": \"two\"}"}}},
       {"two"}},
      {"the beginning of a stop string in a preamble",
       preamble + "one tw" + end + preamble + "o three<|return|>",
       {"", "one tw\n\no three"},
       {"two"}},
  };
}

// Messages of others end the answer where they begin, and nothing behind them is part of it.
std::vector<Row> foreign_rows() {
  const std::string begun = "<|channel|>commentary<|message|>I look.<|end|>";
  const std::string behind = "<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>no<|return|>";
  const std::string call = "<|channel|>commentary to=functions.read<|message|>{\"path\": 1}<|end|>";
  return {
      {"the user",
       begun + "<|start|>u" + kCut1 + "ser" + behind,
       {"", "I look."},
       {},
       false,
       begun + "<|start|>u"},
      {"a tool's result",
       call + "<|start|>fu" + kCut1 + "nctions.read to=assistant<|channel|>commentary" + behind,
       {"", "", {{"read", "{\"path\": 1}"}}},
       {},
       false,
       call + "<|start|>fu"},
      {"a system message",
       begun + "<|start|>s" + kCut1 + "ystem" + behind,
       {"", "I look."},
       {},
       false,
       begun + "<|start|>s"},
      {"the user without a start",
       begun + "user" + behind,
       {"", "I look."},
       {},
       false,
       begun + "user<|message|>"},
      {"a call of somebody else's",
       begun + "<|start|>d" + kCut1 + "eveloper to=functions.read" + behind,
       {"", "I look."},
       {},
       false,
       begun + "<|start|>d"},
      {"nobody at all", "<|start|>B" + kCut1 + "ob" + behind, {}, {}, false, "<|start|>B"},
  };
}

// Rows whose answers are the same in all four APIs. A call's arguments are as the model wrote them; APIs that
// give them as an object have {"arguments": text} for what is none.
std::vector<Row> rows() {
  std::vector<Row> all;
  for (const auto& some : {plain_rows(), header_rows(), message_rows(), foreign_rows()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

// Every character of ordinary text is a token of its own, or several.
std::string in_characters(const std::string& script) {
  std::string cut;
  for (size_t i = 0; i < script.size(); ++i) {
    const size_t name = script.compare(i, 2, "<|") == 0 ? script.find("|>", i) + 2 - i : 1;
    cut += script.substr(i, name);
    i += name - 1;
    if (i + 1 < script.size() && (script[i + 1] & 0xC0) != 0x80) cut += kCut;
  }
  return cut;
}

// Sanitizers make a request ten times as long.
constexpr int kLimitStep = kMemoryIsSanitized ? 5 : 1;

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
    for (int limit = 1; limit < all.tokens; limit += kLimitStep) {
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

// The tokens that a header comes in do not matter.
TEST_F(Answers, AreTheSameInAnyTokens) {
  for (Row row : rows()) {
    row.writes = in_characters(row.writes), row.generated = in_characters(row.generated);
    for (const Api& api : apis()) {
      if (row.one_call && !api.can_limit_calls) continue;
      SCOPED_TRACE(testing::Message() << row.what << ", " << api.name);
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
