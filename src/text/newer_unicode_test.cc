#include "text/newer_unicode.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "text/pretokenizer.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

std::string utf8(uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 63)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

TEST(NewerUnicode, OlderTextIsLeftAlone) {
  for (const char* text :
       {"", "a", "caf\u00E9", "\u65E5\u672C\u8A9E", "\u0928\u092E", "\U0001F600\U0001F64F", "\U0002A6D6"})
    EXPECT_FALSE(with_older_characters(text).has_value()) << text;
}

// The table has as many characters as it was made of, so none was lost on the way, and each is as long as
// before.
TEST(NewerUnicode, EveryCharacterOfTheTableIsFound) {
  int found = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string text = utf8(code);
    const auto older = with_older_characters(text);
    if (!older) continue;
    ++found;
    ASSERT_EQ(older->size(), text.size());
    ASSERT_EQ(utf8_valid_prefix(*older), text.size());
    ASSERT_FALSE(with_older_characters(*older).has_value());
  }
  EXPECT_EQ(found, 9485);
}

TEST(NewerUnicode, OthersKeepTheirPlace) {
  EXPECT_EQ(with_older_characters("ab\U0001E5F1\u65E5 \u1C89!\U0001F600"),
            "ab\U0001D7CE\u65E5 \u2102!\U0001F600");
}

// One character of each group, in texts that split otherwise when it is no letter, mark or number.
TEST(NewerUnicode, SplitsAsTiktoken) {
  const auto made = Pretokenizer::create(kO200kPattern);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto pieces = [&](std::string_view text) {
    std::vector<std::string> list;
    EXPECT_TRUE(made.value()
                    .split(text, [&](std::string_view piece) { return list.emplace_back(piece), true; })
                    .ok());
    return list;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("x\u1C89's"), (Pieces{"x", "\u1C89's"}));      // upper case begins a word
  EXPECT_EQ(pieces("x\u1C8A's"), (Pieces{"x\u1C8A's"}));          // lower case goes on
  EXPECT_EQ(pieces("x\U0001E030's"), (Pieces{"x\U0001E030's"}));  // modifier
  EXPECT_EQ(pieces("x\U00031350's"), (Pieces{"x\U00031350's"}));  // ideograph
  EXPECT_EQ(pieces("x\u0897's"), (Pieces{"x\u0897's"}));          // mark
  EXPECT_EQ(pieces("1\U0001E4F0"
                   "23"),
            (Pieces{"1\U0001E4F0"
                    "2",
                    "3"}));  // digit, groups of three
}

}  // namespace
}  // namespace moesaic
