#include "text/harmony_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>

#include "text/small_tokenizer.h"

namespace moesaic {
namespace {

using Kind = HarmonyEvent::Kind;
using Reason = HarmonyEvent::Reason;

struct Parsed {
  std::vector<Message> messages;  // at kMessageEnd and kToolCall
  std::vector<Kind> kinds;        // kinds of those messages
  Reason reason = Reason::kNone;
  int recoveries = 0;
};

// Wherever the output is cut off, its end adds no call, and of text no more than a channel's name.
void check_cut(HarmonyParser parser) {
  const auto begins = [](std::string_view text) {
    return [text](std::string_view name) { return name.starts_with(text); };
  };
  for (const HarmonyEvent& event : parser.finish()) {
    EXPECT_NE(event.kind, Kind::kToolCall);
    const bool text = event.kind == Kind::kText;
    EXPECT_EQ(event.reason, text ? Reason::kNone : Reason::kTruncated);
    EXPECT_TRUE(!text || std::ranges::any_of(kChannels, begins(event.message.text)));
  }
}

// Feeds what a model wrote behind <|start|>assistant, and checks what holds for any output: the deltas add up
// to the messages, and kDone comes once and last.
Parsed parse(const std::vector<int32_t>& tokens, const Tokenizer& tokenizer) {
  HarmonyParser parser(tokenizer);
  std::vector<HarmonyEvent> events;
  const auto add = [&](std::vector<HarmonyEvent> more) {
    for (HarmonyEvent& event : more) events.push_back(std::move(event));
  };
  for (const int32_t token : tokens) {
    add(parser.push(token));
    check_cut(parser);
  }
  add(parser.finish());
  EXPECT_TRUE(parser.done());
  Parsed parsed;
  std::string open;
  for (size_t i = 0; i < events.size(); ++i) {
    const HarmonyEvent& event = events[i];
    EXPECT_EQ(event.kind == Kind::kDone, i + 1 == events.size());
    if (event.kind == Kind::kText) open += event.message.text;
    if (event.kind == Kind::kMessageEnd || event.kind == Kind::kToolCall) {
      EXPECT_EQ(open, event.message.text);
      open.clear();
      parsed.messages.push_back(event.message);
      parsed.kinds.push_back(event.kind);
    }
  }
  EXPECT_EQ(open, "");
  parsed.reason = events.empty() ? Reason::kNone : events.back().reason;
  parsed.recoveries = parser.recoveries();
  return parsed;
}

Parsed parse(const std::string& output) {
  const Tokenizer tokenizer = small::tokenizer();
  return parse(tokenizer.encode(output, true), tokenizer);
}

TEST(HarmonyParser, TheLongestNameOfAFunctionFits) {
  const std::string name(256, '.');
  const Parsed parsed =
      parse("<|channel|>commentary to=functions." + name + " <|constrain|>json<|message|>{}<|call|>");
  ASSERT_EQ(parsed.messages.size(), 1u);
  EXPECT_EQ(parsed.kinds[0], Kind::kToolCall);
  EXPECT_EQ(parsed.messages[0].recipient, "functions." + name);
  EXPECT_EQ(parsed.messages[0].text, "{}");
}

TEST(HarmonyParser, AnalysisThenAnswer) {
  const Parsed parsed = parse(
      "<|channel|>analysis<|message|>hm 日<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>");
  ASSERT_EQ(parsed.messages.size(), 2u);
  EXPECT_EQ(parsed.messages[0].channel, "analysis");
  EXPECT_EQ(parsed.messages[0].text, "hm 日");
  EXPECT_EQ(parsed.messages[1].role, "assistant");
  EXPECT_EQ(parsed.messages[1].channel, "final");
  EXPECT_EQ(parsed.messages[1].text, "yes");
  EXPECT_EQ(parsed.reason, Reason::kReturn);
  EXPECT_EQ(parsed.recoveries, 0);
}

TEST(HarmonyParser, ToolCallsInEveryOrder) {
  for (const char* header : {" to=functions.f<|channel|>commentary <|constrain|>json",
                             "<|channel|>commentary to=functions.f <|constrain|>json",
                             "<|channel|>commentary to=functions.f<|constrain|>json"}) {
    const Parsed parsed = parse(std::string(header) + "<|message|>{}<|call|>");
    ASSERT_EQ(parsed.messages.size(), 1u) << header;
    EXPECT_EQ(parsed.kinds[0], Kind::kToolCall);
    EXPECT_EQ(parsed.messages[0].recipient, "functions.f");
    EXPECT_EQ(parsed.messages[0].channel, "commentary");
    EXPECT_EQ(parsed.messages[0].content_type, "<|constrain|>json");
    EXPECT_EQ(parsed.messages[0].text, "{}");
    EXPECT_EQ(parsed.reason, Reason::kCall);
    EXPECT_EQ(parsed.recoveries, 0);
  }
  EXPECT_EQ(parse("<|channel|>analysis to=python code<|message|>1<|call|>").messages[0].content_type, "code");
}

struct Malformed {
  const char* output;
  std::vector<std::string> texts;  // "channel:text"
  Reason reason;
};

TEST(HarmonyParser, RecoversAndCounts) {
  const Malformed cases[] = {
      {"", {}, Reason::kTruncated},
      {"plain text", {}, Reason::kTruncated},
      {"<|start|>assistant<|return|>", {}, Reason::kReturn},
      {"<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b<|return|>",
       {"analysis:a", "final:b"},
       Reason::kReturn},
      {"<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.f<|end|>",
       {"analysis:a"},
       Reason::kTruncated},
      {"<|channel|>commentary to=functions.f <|constrain|>json<|call|>", {"commentary:"}, Reason::kCall},
      {"<|channel|>commentary to=functions.f json not JSON<|call|>",
       {"commentary: json not JSON"},
       Reason::kCall},
      {" to=functions.f<|channel|>final hello<|return|>", {"final: hello"}, Reason::kReturn},
      {"words<|channel|>final hello<|return|>", {"analysis:words", "final: hello"}, Reason::kReturn},
      {"<|channel|>commentary to=all<|message|>a<|end|>", {"commentary:a"}, Reason::kTruncated},
      {"plain<|return|>", {"final:plain"}, Reason::kReturn},
      {"<|return|>", {}, Reason::kReturn},
      {"<|channel|>final hello<|return|>", {"final: hello"}, Reason::kReturn},
      {"<|channel|>final<|message|>cut", {"final:cut"}, Reason::kTruncated},
      {"<|channel|>final<|message|>x<|endoftext|>", {"final:x"}, Reason::kEndOfText},
      {"<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>",
       {"analysis:a", "final:b"},
       Reason::kReturn},
      {"<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>",
       {"analysis:a", "final:b"},
       Reason::kReturn},
      {"<|channel|>analysis<|message|>a<|end|>b<|return|>", {"analysis:a", "final:b"}, Reason::kReturn},
      {"<|channel|>analysis<|message|>a<|end|><|end|><|return|>", {"analysis:a"}, Reason::kReturn},
      {"<|channel|>final<|message|>a<|message|>b<|constrain|>c<|return|>", {"final:abc"}, Reason::kReturn},
      {"<|channel|>final<|message|>final<|message|>analysis<|message|>commentary<|message|>a<|return|>",
       {"final:a"},
       Reason::kReturn},
      {"<|channel|>final<|message|>a final<|message|>b<|return|>", {"final:a finalb"}, Reason::kReturn},
      {"<|channel|>final<|message|>final<|constrain|>a<|return|>", {"final:finala"}, Reason::kReturn},
      {"<|message|>a<|return|>", {":a"}, Reason::kReturn},
      {"<|start|>assistant<|channel|>final<|message|>a<|return|>", {"final:a"}, Reason::kReturn},
      {"<|channel|>final<|message|>a<|call|>", {"final:a"}, Reason::kCall}};
  for (const Malformed& malformed : cases) {
    const Parsed parsed = parse(malformed.output);
    std::vector<std::string> texts;
    for (const Message& message : parsed.messages) texts.push_back(message.channel + ":" + message.text);
    EXPECT_EQ(texts, malformed.texts) << malformed.output;
    EXPECT_EQ(parsed.reason, malformed.reason) << malformed.output;
  }
  EXPECT_EQ(parse("<|channel|>final<|message|>a<|message|>b<|return|>").recoveries, 1);
  EXPECT_EQ(parse("<|channel|>final<|message|>final<|message|>final<|message|>a<|return|>").recoveries, 2);
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>").recoveries, 1);
  EXPECT_EQ(parse("plain<|return|>").recoveries, 1 + 0);
}

TEST(HarmonyParser, AToolCallWithoutMessageToken) {
  const Parsed parsed = parse(" to=functions.f<|channel|>commentary{\"x\":1}<|call|>");
  ASSERT_EQ(parsed.messages.size(), 1u);
  EXPECT_EQ(parsed.messages[0].recipient, "functions.f");
  EXPECT_EQ(parsed.messages[0].channel, "commentary");
  EXPECT_EQ(parsed.messages[0].text, "{\"x\":1}");
}

// Text that begins like a channel's name waits no longer than it does.
TEST(HarmonyParser, AnAnswerMayBeginWithAChannelsName) {
  const Tokenizer tokenizer = small::tokenizer();
  for (const std::string text : {"final", "finally", "fin", "finish", "commentary: no", "a"}) {
    const Parsed parsed = parse("<|channel|>final<|message|>" + text + "<|return|>");
    ASSERT_EQ(parsed.messages.size(), 1u);
    EXPECT_EQ(parsed.messages[0].text, text);
    EXPECT_EQ(parsed.recoveries, 0);
    EXPECT_EQ(parse("<|channel|>final<|message|>" + text).messages.at(0).text, text);
  }
  for (const std::string prompt : {"", "x", "f"}) {
    HarmonyParser parser(tokenizer);
    parser.continue_from(tokenizer.encode("<|start|>assistant<|channel|>final<|message|>" + prompt, true));
    std::string shown;
    for (const int32_t token : tokenizer.encode("final.", true)) {
      for (const HarmonyEvent& event : parser.push(token)) shown += event.message.text;
      EXPECT_EQ(shown.empty(), prompt.empty() && token != '.') << prompt << token;
    }
    EXPECT_EQ(shown, "final.");
  }
}

TEST(HarmonyParser, AnUnfinishedCallIsNoCall) {
  const std::string output = " to=functions.f<|channel|>commentary<|message|>{\"x\":1}";
  const Parsed cut = parse(output), whole = parse(output + "<|end|>");
  EXPECT_EQ(cut.kinds, std::vector<Kind>{Kind::kMessageEnd});
  EXPECT_EQ(cut.messages[0].recipient, "functions.f");
  EXPECT_EQ(cut.recoveries, 0);
  EXPECT_EQ(whole.kinds, std::vector<Kind>{Kind::kToolCall});
}

TEST(HarmonyParser, AMessageOfSomebodyElseEndsTheTurn) {
  const std::string before = "<|channel|>analysis<|message|>a<|end|>";
  const std::string behind = "<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>b<|return|>";
  for (const char* header :
       {"<|start|>functions.f to=assistant<|channel|>commentary", "<|start|>user", "<|start|>system",
        "<|start|> tool to=assistant", "<|start|>developer to=functions.f", "<|start|>Bob", "<|start|>a",
        "<|start|>assist", "user", "functions.f to=assistant<|channel|>commentary", "tool<|channel|>final",
        "<|start|>user<|end|>", "<|start|>user<|start|>"}) {
    const Parsed parsed = parse(std::string(before).append(header).append(behind));
    ASSERT_EQ(parsed.messages.size(), 1u) << header;
    EXPECT_EQ(parsed.messages[0].text, "a") << header;
    EXPECT_EQ(parsed.reason, Reason::kForeign) << header;
  }
  EXPECT_EQ(parse("<|channel|>commentary to=all<|message|>{}<|call|>").messages[0].recipient, "");
}

// The token that names somebody else is the last one that is needed.
TEST(HarmonyParser, SomebodyElseIsRecognisedAtOnce) {
  const Tokenizer tokenizer = small::tokenizer();
  HarmonyParser parser(tokenizer);
  for (const int32_t token : tokenizer.encode("<|channel|>final<|message|>x<|end|><|start|>assi", true))
    parser.push(token);
  EXPECT_FALSE(parser.done());
  EXPECT_EQ(parser.push('g').back().reason, Reason::kForeign);
  EXPECT_TRUE(parser.done());
}

TEST(HarmonyParser, ACharacterThatIsCutIsLeftOut) {
  const Tokenizer tokenizer = small::tokenizer();
  std::vector<int32_t> tokens = tokenizer.encode("<|channel|>final<|message|>a", true);
  tokens.insert(tokens.end(), {0xE6, 0x97});
  EXPECT_EQ(parse(tokens, tokenizer).messages[0].text, "a");
  tokens.push_back(small::kFirstSpecial + 2);  // <|return|>
  EXPECT_EQ(parse(tokens, tokenizer).messages[0].text, "a\xEF\xBF\xBD");
}

TEST(HarmonyParser, EndlessHeaderBecomesAnAnswerWhileItStreams) {
  const Tokenizer tokenizer = small::tokenizer();
  HarmonyParser parser(tokenizer);
  std::string text;
  for (int i = 0; i < 1000; ++i)
    for (const HarmonyEvent& event : parser.push('x')) text += event.message.text;
  EXPECT_EQ(text, std::string(1000, 'x'));
}

TEST(HarmonyParser, AnyTokensAtAll) {
  const Tokenizer tokenizer = small::tokenizer();
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    std::vector<int32_t> tokens(random() % 40);
    for (int32_t& token : tokens)
      token = random() % 2 ? small::kFirstSpecial + static_cast<int>(random() % 9)
                           : static_cast<int>(random() % 320);
    parse(tokens, tokenizer);
  }
}

TEST(HarmonyParser, IgnoresWhatFollowsTheEnd) {
  const Tokenizer tokenizer = small::tokenizer();
  HarmonyParser parser(tokenizer);
  parser.push(small::kFirstSpecial + 2);  // <|return|>
  EXPECT_TRUE(parser.done());
  EXPECT_TRUE(parser.push('a').empty());
  EXPECT_TRUE(parser.finish().empty());
}

}  // namespace
}  // namespace moesaic
