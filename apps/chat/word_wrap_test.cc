#include "chat/word_wrap.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

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

TEST(WordWrap, KeepsTogetherWhatIsOneCharacterToTheReader) {
  use_utf8();
  const std::string acute = "\xCC\x81", selector = "\xEF\xB8\x8F", joiner = "\xE2\x80\x8D";
  const std::string man = "\xF0\x9F\x91\xA8", girl = "\xF0\x9F\x91\xA7", world = "\xE4\xB8\x96";
  EXPECT_EQ(wrapped("abcd e" + acute + "f", 6), "abcd\ne" + acute + "f");
  EXPECT_EQ(wrapped("a " + acute + " b", 9), "a " + acute + " b");
  EXPECT_EQ(wrapped(world + acute + world, 2), world + acute + "\n" + world);
  EXPECT_EQ(wrapped(world + selector + "ab", 3), world + selector + "\nab");
  EXPECT_EQ(wrapped("a " + man + joiner + girl, 5), "a\n" + man + joiner + girl);
  EXPECT_EQ(wrapped("a " + man + joiner + girl, 6), "a " + man + joiner + girl);
}

// How many marks stand behind one of these characters, or at the beginning. Styles are passed over.
int marks_behind(const std::string& text, const std::string& before) {
  const std::string bare = std::regex_replace("\n" + text, std::regex("\x1b\\[1m"), "");
  const std::regex mark("[" + before + "](\xCC\x81|\xE2\x80\x8D)");
  return static_cast<int>(std::distance(std::sregex_iterator(bare.begin(), bare.end(), mark), {}));
}

// A character that takes no column, or two, at each place of a line: nothing is lost, and none begins a line
// that belongs to the character before, unless that is a space.
TEST(WordWrap, RandomCharactersOfEveryWidth) {
  use_utf8();
  const std::vector<std::string> all = {
      "a", "b", " ", "\xCC\x81", "\xE4\xB8\x96", "\xF0\x9F\x91\xA8", "\xE2\x80\x8D", "\x1b[1m", "\n"};
  std::mt19937 random(2);
  const auto bare = [](std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += all[random() % all.size()];
    const std::string out = wrapped(text, 2 + static_cast<int>(random() % 12));
    ASSERT_EQ(bare(out), bare(text)) << text;
    ASSERT_LE(marks_behind(out, "\n"), marks_behind(text, " \n")) << text;
  }
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
