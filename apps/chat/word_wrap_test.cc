#include "chat/word_wrap.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "chat/terminal_text.h"

namespace moesaic::chat {
namespace {

std::string wrapped(const std::string& text, int columns) {
  WordWrap wrap(columns);
  wrap.text(text);
  const std::string out = wrap.take();
  return out + wrap.finish();
}

TEST(WordWrap, BreaksBetweenWords) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 8), "one two\nthree");
  EXPECT_EQ(wrapped("one  two\n\n  three  \nfour", 40), "one  two\n\n  three\nfour");
  EXPECT_EQ(wrapped("\x1b[1mone two\x1b[0m three", 7), "\x1b[1mone two\x1b[0m\nthree");
  EXPECT_EQ(wrapped("one two \x1b[1mthree\x1b[0m", 7), "one two\n\x1b[1mthree\x1b[0m");
}

TEST(WordWrap, LeavesAWordThatNoLineHoldsToTheTerminal) {
  EXPECT_EQ(wrapped("abcdefghijkl mno", 5), "abcdefghijkl\nmno");
  EXPECT_EQ(wrapped("a bcdefghijkl", 5), "a\nbcdefghijkl");
}

TEST(WordWrap, BreaksBetweenWideCharacters) {
  use_utf8();
  EXPECT_EQ(wrapped("ab \xE4\xB8\x96\xE7\x95\x8C\xE4\xB8\x96", 7),
            "ab \xE4\xB8\x96\xE7\x95\x8C\n\xE4\xB8\x96");
}

TEST(WordWrap, KeepsVerbatimLines) {
  WordWrap wrap(5);
  wrap.text("  ");
  wrap.verbatim("one two three\n");
  wrap.text("four five");
  EXPECT_EQ(wrap.finish(), "  one two three\nfour\nfive");
}

// Words and their order stay, no line is longer than the terminal, and none could have held the next word.
TEST(WordWrap, RandomTextInRandomPieces) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int word = 0; word < 30; ++word) text += std::string(1 + random() % 6, 'a' + word % 26) + ' ';
    const size_t columns = 6 + random() % 20;
    WordWrap wrap(static_cast<int>(columns));
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 9;
      wrap.text(text.substr(at, length));
      out += wrap.take();
      at += length;
    }
    out += wrap.finish();
    std::istringstream lines(out), words(text);
    std::string line, before, word;
    for (bool first = true; std::getline(lines, line); first = false) {
      EXPECT_LE(line.size(), columns);
      if (!first) {
        EXPECT_GT(before.size() + 1 + line.substr(0, line.find(' ')).size(), columns);
      }
      std::istringstream shown(line);
      for (std::string got; shown >> got;) {
        words >> word;
        EXPECT_EQ(got, word);
      }
      before = line;
    }
    EXPECT_FALSE(words >> word);
  }
}

}  // namespace
}  // namespace moesaic::chat
