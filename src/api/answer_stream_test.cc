#include "api/answer_stream.h"

#include <gtest/gtest.h>

#include "text/small_tokenizer.h"

namespace moesaic {
namespace {

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
    take(stream.push(t, false));
    if (stream.stopped()) break;
  }
  take(stream.finish());
  return out;
}

TEST(AnswerStream, PlainTextComesInWholeCharactersWithoutStopStrings) {
  const Tokenizer tokenizer = small::tokenizer();
  const std::vector<int32_t> tokens = tokenizer.encode("hello w\xE6\x97\xA5 STO STOP more", false);
  EXPECT_EQ(read({tokenizer, false, {}}, tokens),
            (std::vector<std::string>{">:hello w\xE6\x97\xA5 STO STOP more"}));
  EXPECT_EQ(read({tokenizer, false, {"STOP"}}, tokens),
            (std::vector<std::string>{">:hello w\xE6\x97\xA5 STO "}));
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

}  // namespace
}  // namespace moesaic
