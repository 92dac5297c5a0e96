#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <vector>

namespace moesaic {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const char* pattern, std::string_view text) {
  const auto made = Pretokenizer::create(pattern);
  EXPECT_TRUE(made.ok()) << made.status().message();
  Pieces pieces;
  const Status status =
      made.value().split(text, [&](std::string_view piece) { return pieces.emplace_back(piece), true; });
  EXPECT_TRUE(status.ok()) << status.message();
  return pieces;
}

TEST(Pretokenizer, O200kPieces) {
  EXPECT_EQ(split(kO200kPattern, "Hello  world's 12345"),
            (Pieces{"Hello", " ", " world's", " ", "123", "45"}));
  EXPECT_EQ(split(kO200kPattern, "McDonald DON'T"), (Pieces{"Mc", "Donald", " DON'T"}));
  EXPECT_EQ(split(kO200kPattern, "a \n\n b!!\n//c"), (Pieces{"a", " \n\n", " b", "!!\n//", "c"}));
  EXPECT_EQ(split(kO200kPattern, "end   "), (Pieces{"end", "   "}));
}

TEST(Pretokenizer, ContractionsFoldLongS) {
  EXPECT_EQ(split(kO200kPattern, "it'\u017F it'S"), (Pieces{"it'\u017F", " it'S"}));
}

// U+180E is no white space since Unicode 6.3; PCRE2's own \s has it.
TEST(Pretokenizer, WhiteSpaceIsTheUnicodeProperty) {
  EXPECT_EQ(split(R"(\s+|\S+)", "a\u180Eb\u0085\u2003c"), (Pieces{"a\u180Eb", "\u0085\u2003", "c"}));
  EXPECT_EQ(split(R"([\s]+|[^\s]+)", "a\u180Eb \u3000c"), (Pieces{"a\u180Eb", " \u3000", "c"}));
}

TEST(Pretokenizer, WhatIsNotMatchedIsAPieceToo) {
  EXPECT_EQ(split("b+", "aabbccbd"), (Pieces{"aa", "bb", "cc", "b", "d"}));
  EXPECT_EQ(split("x*", "日本x"), (Pieces{"日本", "x"}));  // empty matches cut nothing
  EXPECT_EQ(split("a", ""), Pieces{});
}

TEST(Pretokenizer, HopelessPatternsFailInsteadOfHanging) {
  EXPECT_FALSE(Pretokenizer::create("(").ok());
  const auto made = Pretokenizer::create("(a|aa)+[bc]");
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made.value().split(std::string(60, 'a'), [](std::string_view) { return true; }).ok());
}

}  // namespace
}  // namespace moesaic
