#include "api/answer_stream.h"

#include <gtest/gtest.h>

#include <map>

#include "text/small_tokenizer.h"

namespace moesaic {
namespace {

constexpr int32_t kEnd = small::kFirstSpecial + 2;  // <|return|>

// The pieces of a whole answer as "channel>recipient:text", neighbours of one kind joined.
std::vector<std::string> read(AnswerStream stream, const std::vector<int32_t>& tokens) {
  std::vector<std::string> out;
  std::string last;
  const auto take = [&](const std::vector<TextPiece>& pieces) {
    for (const TextPiece& p : pieces) {
      EXPECT_FALSE(p.text.empty());
      const std::string kind = p.channel + ">" + p.recipient + ":";
      if (kind != last || out.empty()) out.push_back(kind);
      out.back() += p.text;
      last = kind;
    }
  };
  for (const int32_t t : tokens) {
    take(stream.push(t, t == kEnd));
    if (stream.stopped()) break;
  }
  take(stream.finish());
  return out;
}

TEST(AnswerStream, PlainTextComesInWholeCharactersWithoutStopStrings) {
  const Tokenizer tokenizer = small::tokenizer();
  std::vector<int32_t> tokens = tokenizer.encode("hello w\xE6\x97\xA5 STO STOP more", false);
  EXPECT_EQ(read({tokenizer, false, {}}, tokens),
            (std::vector<std::string>{">:hello w\xE6\x97\xA5 STO STOP more"}));
  EXPECT_EQ(read({tokenizer, false, {"STOP"}}, tokens),
            (std::vector<std::string>{">:hello w\xE6\x97\xA5 STO "}));
  // At a cut, letters that may begin a stop string are not part of the text.
  EXPECT_EQ(read({tokenizer, false, {"more!"}}, tokens).back(), ">:hello w\xE6\x97\xA5 STO STOP ");
  tokens.push_back(kEnd);
  EXPECT_EQ(read({tokenizer, false, {"more!"}}, tokens).back(), ">:hello w\xE6\x97\xA5 STO STOP more");
}

TEST(AnswerStream, AStopTokenIsNoText) {
  const Tokenizer tokenizer = small::tokenizer();
  AnswerStream stream(tokenizer, false, {});
  EXPECT_TRUE(stream.push('a', true).empty());
  EXPECT_EQ(stream.push('a', false).size(), 1u);
}

TEST(AnswerStream, ChatComesByChannelAndRecipient) {
  const Tokenizer tokenizer = small::tokenizer();
  const std::string answer =
      "<|channel|>analysis<|message|>a STOP b<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.f<|message|>{}<|call|>";
  AnswerStream call(tokenizer, true, {"STOP"});
  EXPECT_EQ(read(call, tokenizer.encode(answer, true)),
            (std::vector<std::string>{"analysis>:a STOP b", "commentary>functions.f:{}"}));
  const std::string final =
      "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b STOP c<|return|>";
  EXPECT_EQ(read({tokenizer, true, {"STOP"}}, tokenizer.encode(final, true)),
            (std::vector<std::string>{"analysis>:a", "final>:b "}));
  EXPECT_EQ(read({tokenizer, true, {" c!"}}, tokenizer.encode(final, true)).back(), "final>:b STOP c");
}

TEST(AnswerStream, KeepsTheMessages) {
  const Tokenizer tokenizer = small::tokenizer();
  AnswerStream stream(tokenizer, true, {});
  for (const int32_t t : tokenizer.encode("<|channel|>final<|message|>hello<|return|>", true))
    stream.push(t, false);
  ASSERT_EQ(stream.messages().size(), 1u);
  EXPECT_EQ(stream.messages()[0].channel, "final");
  EXPECT_EQ(stream.messages()[0].text, "hello");
}

// A client that puts the pieces together.
struct Read {
  std::map<std::string, std::string> texts;                // by channel
  std::vector<std::pair<std::string, std::string>> calls;  // recipient, text
  std::vector<Message> messages;
};

Read read_cut(AnswerStream stream, const std::vector<int32_t>& tokens, size_t count) {
  Read out;
  const auto take = [&out](const std::vector<TextPiece>& pieces) {
    for (const TextPiece& p : pieces) {
      if (p.recipient.empty()) out.texts[p.channel] += p.text;
      if (!p.recipient.empty() && p.begins) out.calls.emplace_back(p.recipient, "");
      if (!p.recipient.empty()) out.calls.back().second += p.text;
    }
  };
  for (size_t i = 0; i < count && !stream.stopped(); ++i) take(stream.push(tokens[i], tokens[i] == kEnd));
  take(stream.finish());
  out.messages = stream.messages();
  return out;
}

constexpr const char* kAnalysis = "<|channel|>analysis<|message|>hm \xE6\x97\xA5\xE6\x9C\xAC {1}<|end|>";
constexpr const char* kPreamble =
    "<|start|>assistant<|channel|>commentary<|message|>I look\xF0\x9F\x98\x80<|end|>";
constexpr const char* kCall =
    "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"x\": "
    "\"\xC3\xA9\"}";
constexpr const char* kFinal =
    "<|start|>assistant<|channel|>final<|message|>so STO hello\xE2\x82\xAC STOP w<|return|>";

std::vector<std::string> outputs() {
  const std::string analysis = kAnalysis, preamble = kPreamble, call = kCall, final = kFinal;
  return {analysis + final,
          analysis + preamble + call + "<|call|>",
          analysis + call + "<|end|>" + call + "<|call|>",
          analysis + call + "<|end|>" + final,
          analysis + call + "<|return|>",
          "<|channel|>commentary to=functions.f<|message|><|call|>",
          "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
          " to=functions.f<|channel|>commentary{\"x\":1}<|call|>",
          " to=functions.f<|channel|>commentary json<|call|>",
          "<|channel|>commentary to=functions.f <|constrain|>json<|call|>",
          "plain text<|return|>",
          std::string(400, 'x') + "<|return|>",
          analysis + "<|start|>assistant<|return|>",
          analysis + "<|start|>assistant to=functions.f<|end|>" + final,
          analysis + "assistant to=functions.f<|channel|>commentary<|message|>{}<|call|>",
          analysis + "<|start|>functions.f to=assistant<|channel|>commentary<|message|>{}<|end|>" + final,
          "<|channel|>commentary to=all<|message|>hello<|end|>" + final};
}

bool begins(const std::string& whole, const std::string& part) { return whole.starts_with(part); }

TEST(AnswerStream, WhateverItsLengthAnOutputIsABeginningOfTheWhole) {
  const Tokenizer tokenizer = small::tokenizer();
  for (const std::string& output : outputs()) {
    for (const std::vector<std::string>& stops :
         {std::vector<std::string>{}, {"STOP"}, {"w!", "\xE2\x82\xAC STOP w and"}}) {
      const std::vector<int32_t> tokens = tokenizer.encode(output, true);
      const Read whole = read_cut({tokenizer, true, stops}, tokens, tokens.size());
      for (size_t count = 0; count < tokens.size(); ++count) {
        const Read cut = read_cut({tokenizer, true, stops}, tokens, count);
        const std::string where = output + " cut at " + std::to_string(count);
        for (const auto& [channel, text] : cut.texts) {
          ASSERT_TRUE(whole.texts.contains(channel)) << where;
          EXPECT_TRUE(begins(whole.texts.at(channel), text)) << where << ": " << text;
        }
        ASSERT_LE(cut.calls.size(), whole.calls.size()) << where;
        EXPECT_TRUE(std::equal(cut.calls.begin(), cut.calls.end(), whole.calls.begin())) << where;
        ASSERT_LE(cut.messages.size(), whole.messages.size()) << where;
        for (size_t i = 0; i < cut.messages.size(); ++i) {
          EXPECT_TRUE(begins(whole.messages[i].text, cut.messages[i].text)) << where;
          if (cut.messages[i].recipient.empty()) continue;
          EXPECT_EQ(cut.messages[i].text, whole.messages[i].text) << where;
        }
      }
    }
  }
}

TEST(AnswerStream, PlainTextIsCutBetweenCharacters) {
  const Tokenizer tokenizer = small::tokenizer();
  std::vector<int32_t> tokens = tokenizer.encode("a\xE6\x97\xA5 STO \xF0\x9F\x98\x80 STOP b", false);
  tokens.push_back(kEnd);
  for (const std::vector<std::string>& stops : {std::vector<std::string>{}, {"STOP"}}) {
    const Read whole = read_cut({tokenizer, false, stops}, tokens, tokens.size());
    for (size_t count = 0; count < tokens.size(); ++count) {
      const std::string text = read_cut({tokenizer, false, stops}, tokens, count).texts[""];
      EXPECT_TRUE(begins(whole.texts.at(""), text)) << count << ": " << text;
    }
  }
  // A model that ends within a character has written one that is broken.
  EXPECT_EQ(read_cut({tokenizer, false, {}}, {'a', 0xE6, kEnd}, 3).texts[""], "a\xEF\xBF\xBD");
  EXPECT_EQ(read_cut({tokenizer, false, {}}, {'a', 0xE6, kEnd}, 2).texts[""], "a");
}

TEST(AnswerStream, WordsOfAHeaderAreNeverText) {
  const Tokenizer tokenizer = small::tokenizer();
  for (const std::string& output : outputs()) {
    const std::vector<int32_t> tokens = tokenizer.encode(output, true);
    for (size_t count = 0; count <= tokens.size(); ++count) {
      for (const auto& [channel, text] : read_cut({tokenizer, true, {}}, tokens, count).texts) {
        for (const char* word : {"assistant", "to=", "functions", "json", "channel", "final", "commentary"})
          EXPECT_EQ(text.find(word), std::string::npos) << output << " cut at " << count << ": " << text;
      }
    }
  }
}

TEST(AnswerStream, StopTokensOfTheCallerAreNoTextAndCompleteNoCall) {
  const Tokenizer tokenizer = small::tokenizer();
  AnswerStream stream(tokenizer, true, {});
  for (const int32_t t : tokenizer.encode(std::string(kAnalysis) + kCall, true)) stream.push(t, false);
  EXPECT_TRUE(stream.push('}', true).empty());
  stream.finish();
  ASSERT_EQ(stream.messages().size(), 1u);
  EXPECT_EQ(stream.messages()[0].channel, "analysis");
  const std::vector<int32_t> name = tokenizer.encode("<|channel|>final<|message|>final", true);
  EXPECT_EQ(read({tokenizer, true, {}}, name), (std::vector<std::string>{"final>:final"}));
}

TEST(AnswerStream, WhatIsHeldBackComesBeforeTheNextMessage) {
  const Tokenizer tokenizer = small::tokenizer();
  const std::string output = "<|channel|>final<|message|>a STO<|end|>" + std::string(kCall) + "<|call|>";
  EXPECT_EQ(read({tokenizer, true, {"STOP"}}, tokenizer.encode(output, true)),
            (std::vector<std::string>{"final>:a STO", "commentary>functions.f:{\"x\": \"\xC3\xA9\"}"}));
}

TEST(AnswerStream, StopStringsWaitForMinTokens) {
  const Tokenizer tokenizer = small::tokenizer();
  const std::vector<int32_t> tokens = tokenizer.encode("aXbXc", false);
  ASSERT_EQ(tokens.size(), 5u);
  const auto text = [&](int min, bool include) {
    return read({tokenizer, false, {"X"}, {.min_tokens = min, .include_stop = include}}, tokens).back();
  };
  EXPECT_EQ(text(0, false), ">:a");
  EXPECT_EQ(text(1, false), ">:a");
  EXPECT_EQ(text(2, false), ">:aXb");
  EXPECT_EQ(text(4, false), ">:aXbXc");
  EXPECT_EQ(text(0, true), ">:aX");
  EXPECT_EQ(text(2, true), ">:aXbX");
}

// Text that comes out after the tokens that wrote it counts as theirs.
TEST(AnswerStream, StopStringsWaitForMinTokensAlsoInTextThatWaited) {
  const Tokenizer tokenizer = small::tokenizer();
  const auto text = [&](const std::string& output, int min, const char* stop) {
    const std::vector<int32_t> tokens = tokenizer.encode(output, true);
    return read({tokenizer, true, {stop}, {.min_tokens = min}}, tokens);
  };
  const std::string final = "<|channel|>final<|message|>final x";  // 7 tokens, then one for each letter
  EXPECT_EQ(text(final, 12, "final"), (std::vector<std::string>{"final>:final x"}));
  EXPECT_EQ(text(final, 11, "final"), (std::vector<std::string>{"final>:final x"}));
  EXPECT_EQ(text(final, 9, "nal"), (std::vector<std::string>{"final>:fi"}));
  EXPECT_EQ(text(final, 9, "fi"), (std::vector<std::string>{"final>:final x"}));
  EXPECT_EQ(text(final, 7, "final"), std::vector<std::string>());
  EXPECT_EQ(text("STOP a STOP b<|return|>", 4, "STOP"), (std::vector<std::string>{"final>:STOP a "}));
  EXPECT_EQ(text("\xE6\x97\xA5 STOP<|return|>", 1, "\xE6\x97\xA5"), std::vector<std::string>());
}

TEST(AnswerStream, TheTextOfAStopTokenIsKeptWhereItIsAskedFor) {
  const Tokenizer tokenizer = small::tokenizer();
  AnswerStream plain(tokenizer, false, {}, {.include_stop = true});
  EXPECT_EQ(plain.push('a', true).size(), 1u);
  EXPECT_TRUE(plain.push(tokenizer.special_id("<|return|>").value(), true).empty());
  const std::vector<int32_t> chat = tokenizer.encode("<|channel|>final<|message|>b", true);
  for (const bool include : {false, true}) {
    AnswerStream stream(tokenizer, true, {}, {.include_stop = include});
    for (const int32_t t : chat) stream.push(t, false);
    EXPECT_EQ(stream.push('c', true).size(), include ? 1u : 0u);
    EXPECT_TRUE(stream.push(tokenizer.special_id("<|end|>").value(), true).empty());
    EXPECT_TRUE(stream.messages().empty());  // a client's stop string does not end the message's text
  }
}

TEST(AnswerStream, AStopTokenOfTheCallersLosesNoText) {
  const Tokenizer tokenizer = small::tokenizer();
  const std::vector<std::pair<std::string, std::string>> texts = {// as it is written, and as it is read
                                                                  {"ab", "ab"},
                                                                  {"a\xE6\x97", "a\xEF\xBF\xBD"},
                                                                  {"final", "final"}};
  for (const auto& [written, expected] : texts) {
    for (const std::string stop : {"zz", "b!", "bc!", "c!", "\xEF\xBF\xBD!", "final!", "finalc!"}) {
      for (const bool include : {false, true}) {
        const std::string text = expected + (include ? "c" : "");
        for (const bool chat : {false, true}) {
          AnswerStream stream(tokenizer, chat, {stop}, {.include_stop = include});
          std::string got;
          const auto take = [&got](const std::vector<TextPiece>& pieces) {
            for (const TextPiece& p : pieces) got += p.text;
          };
          for (const int32_t t : tokenizer.encode(chat ? "<|channel|>final<|message|>" : "", true))
            stream.push(t, false);
          for (const int32_t t : tokenizer.encode(written, false)) take(stream.push(t, false));
          take(stream.push('c', true));
          take(stream.finish());
          EXPECT_EQ(got, text) << stop << include << chat;
          ASSERT_EQ(stream.messages().size(), chat ? 1u : 0u);
          for (const Message& m : stream.messages()) EXPECT_EQ(m.text, text) << stop << include;
        }
      }
    }
  }
}

// A stop string, what its last token has behind it, and what may begin one are not in the messages either.
TEST(AnswerStream, MessagesHaveTheTextOfThePieces) {
  const Tokenizer tokenizer = small::tokenizer();
  const std::vector<int32_t> tokens = tokenizer.encode(std::string(kAnalysis) + kPreamble + kFinal, true);
  for (const std::string stop : {"STOP", "so", "hell", "look", "zz", "STOP w!"}) {
    for (const bool include : {false, true}) {
      for (size_t count = 0; count <= tokens.size(); ++count) {
        const Read read = read_cut({tokenizer, true, {stop}, {.include_stop = include}}, tokens, count);
        std::map<std::string, std::string> texts;
        for (const Message& m : read.messages)
          if (!m.text.empty()) texts[m.channel] += m.text;
        EXPECT_EQ(texts, read.texts) << stop << include << " cut at " << count;
      }
    }
  }
}

TEST(AnswerStream, SpecialTokensOfPlainTextByName) {
  const Tokenizer tokenizer = small::tokenizer();
  const std::vector<int32_t> tokens = tokenizer.encode("a<|channel|>b", true);
  EXPECT_EQ(read({tokenizer, false, {}}, tokens).back(), ">:a<|channel|>b");
  EXPECT_EQ(read({tokenizer, false, {}, {.skip_special = true}}, tokens).back(), ">:ab");
}

}  // namespace
}  // namespace moesaic
