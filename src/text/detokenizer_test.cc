#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/small_tokenizer.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

// Byte b is token b in the small tokenizer.
std::vector<std::string> decode_bytes(const Tokenizer& tokenizer, std::string_view bytes) {
  StreamDecoder decoder(tokenizer);
  std::vector<std::string> deltas;
  for (const char byte : bytes) deltas.push_back(decoder.push(static_cast<uint8_t>(byte)));
  deltas.push_back(decoder.flush());
  return deltas;
}

TEST(StreamDecoder, WaitsForWholeCharacters) {
  const Tokenizer tokenizer = small::tokenizer();
  EXPECT_EQ(decode_bytes(tokenizer, "a日"), (std::vector<std::string>{"a", "", "", "日", ""}));
  EXPECT_EQ(decode_bytes(tokenizer, "\xF0\x9F"), (std::vector<std::string>{"", "", "\uFFFD"}));
  EXPECT_EQ(decode_bytes(tokenizer, "\xE6z"), (std::vector<std::string>{"", "\uFFFDz", ""}));
  EXPECT_EQ(decode_bytes(tokenizer, "\x80"), (std::vector<std::string>{"\uFFFD", ""}));
}

TEST(StreamDecoder, RandomBytesDecodeAsTheWholeTextDoes) {
  const Tokenizer tokenizer = small::tokenizer();
  const std::string pool = "a\x80\xBF\xC2\xE0\xA0\xE6\x97\xA5\xED\xF0\x9F\x99\x82\xF4\xFF";
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes, streamed;
    for (size_t length = random() % 12; bytes.size() < length;) bytes += pool[random() % pool.size()];
    for (const std::string& delta : decode_bytes(tokenizer, bytes)) {
      EXPECT_EQ(utf8_valid_prefix(delta), delta.size());
      streamed += delta;
    }
    EXPECT_EQ(streamed, utf8_lossy(bytes));
  }
}

TEST(StreamDecoder, TokensThatAreNotValidAlone) {
  SKIP_WITHOUT_O200K();
  const Tokenizer& tokenizer = *small::o200k();
  const std::vector<int32_t> cut = {132990, 9552};  // "Chicken", and a space with half an emoji
  EXPECT_LT(utf8_valid_prefix(tokenizer.decode(cut)), tokenizer.decode(cut).size());
  StreamDecoder ending(tokenizer);
  const std::string first = ending.push(cut[0]);
  EXPECT_EQ(first + ending.push(cut[1]), "Chicken ");
  EXPECT_EQ(ending.flush(), "\uFFFD");
  StreamDecoder decoder(tokenizer);
  std::string streamed;
  const std::string text = "🫠 ᚠᛇ 𒀀 日本語";
  for (const int32_t token : tokenizer.encode(text, false)) streamed += decoder.push(token);
  EXPECT_EQ(streamed + decoder.flush(), text);
}

TEST(Utf8, WhatIsNoEscapeStaysInAPercentDecodedText) {
  EXPECT_EQ(percent_decoded("a%2Fb%2f%41"), "a/b/A");
  const std::string plain = "%2 %zz %-1 %+1 % 1 %a";
  EXPECT_EQ(percent_decoded(plain), plain);
}

TEST(Utf8, LossyMatchesTheStandardsExamples) {  // Unicode 15, table 3-8 and section 3.9
  EXPECT_EQ(utf8_lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(utf8_lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFD\x41");
}

}  // namespace
}  // namespace moesaic
