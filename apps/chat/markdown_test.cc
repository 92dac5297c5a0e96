#include "chat/markdown.h"

#include <gtest/gtest.h>

#include <random>

#include "chat/terminal_text.h"

namespace moesaic::chat {
namespace {

std::string shown(const std::string& text, int columns = 80) {
  Markdown markdown(columns);
  std::string out = markdown.add(text);
  return out + markdown.finish();
}

// With <1>text</> for SGR sequences.
std::string marked(const std::string& text, int columns = 80) {
  std::string out = shown(text, columns);
  for (size_t at = out.find("\x1b["); at != std::string::npos; at = out.find("\x1b[", at)) {
    const size_t end = out.find('m', at);
    const std::string codes = out.substr(at + 2, end - at - 2);
    out.replace(at, end + 1 - at, codes == "0" ? "</>" : "<" + codes + ">");
  }
  return out;
}

// Each byte with the style that it is shown in.
std::vector<std::pair<std::string, char>> cells(const std::string& out) {
  std::vector<std::pair<std::string, char>> all;
  std::string style = "0";
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] != '\x1b') {
      all.emplace_back(style, out[i]);
      continue;
    }
    const size_t end = out.find('m', i);
    style = out.substr(i + 2, end - i - 2);
    i = end;
  }
  return all;
}

TEST(Markdown, Inline) {
  EXPECT_EQ(marked("a **b** *c* ***d*** ~~e~~ `f`"), "a <1>b</> <3>c</> <1;3>d</> <9>e</> <36>f</>");
  EXPECT_EQ(marked("**bold *both* and `code`**"), "<1>bold </><1;3>both</><1> and </><1;36>code</>");
  EXPECT_EQ(marked("*a **b** c*"), "<3>a </><1;3>b</><3> c</>");
  EXPECT_EQ(marked("__b__ _i_ snake_case_name"), "<1>b</> <3>i</> snake_case_name");
  EXPECT_EQ(marked("`a*b*` ``x`y``"), "<36>a*b*</> <36>x`y</>");
}

TEST(Markdown, WhatMeansNothingStays) {
  for (const char* text :
       {"2 * 3 * 4", "a*b", "**open", "`open", "[x] y", "a [link](open", "C:\\new", "x < y > z", "#tag",
        "1.5 or 3", "-5", "$5 and $6", "&unknown;", "~one~", "***", "| a | b |"}) {
    const std::string want = std::string(text) == "***" ? "<2>" : text;
    EXPECT_EQ(marked(text).substr(0, want.size()), want) << text;
  }
}

TEST(Markdown, EscapesEntitiesAndLinks) {
  EXPECT_EQ(marked("\\*a\\* &lt;b&gt; <br>c"), "*a* <b>\nc");
  EXPECT_EQ(marked("[text](https://a.b) <https://c.d>"), "<4>text</><2> (https://a.b)</> <4>https://c.d</>");
  EXPECT_EQ(marked("[https://a.b](https://a.b)"), "<4>https://a.b</>");
}

TEST(Markdown, MathematicsStays) {
  EXPECT_EQ(marked("\\(a_1 * b_2 * c\\) and \\[x*y*z\\] and $$p*q*r$$"),
            "\\(a_1 * b_2 * c\\) and \\[x*y*z\\] and $$p*q*r$$");
}

TEST(Markdown, Blocks) {
  EXPECT_EQ(marked("# One\n## Two *x*\ntext"), "<1;4>One</>\n<1>Two </><1;3>x</>\ntext");
  EXPECT_EQ(marked("- a\n* **b**\n  + c\n- [x] d\n- [ ] e"),
            "\u2022 a\n\u2022 <1>b</>\n  \u2022 c\n\u2611 d\n\u2610 e");
  EXPECT_EQ(marked("1. a\n10) *b*"), "1. a\n10) <3>b</>");
  EXPECT_EQ(marked("> a *b*\n> - c"), "<2>\u2502 </>a <3>b</>\n<2>\u2502 </>\u2022 c");
  EXPECT_EQ(marked("a\n\n---\nb", 3), "a\n\n<2>\u2500\u2500\u2500</>\nb");
}

TEST(Markdown, Code) {
  EXPECT_EQ(marked("```cpp\nint *a, *b; # x\n\n``\n```\n*c*"),
            "<2>```cpp</>\n<36>int *a, *b; # x</>\n\n<36>``</>\n<2>```</>\n<3>c</>");
  EXPECT_EQ(marked("~~~~\n~~~\n~~~~\na"), "<2>~~~~</>\n<36>~~~</>\n<2>~~~~</>\na");
  EXPECT_EQ(marked("- x\n  ```\n  y\n  ```\nz"), "\u2022 x\n<2>  ```</>\n<36>  y</>\n<2>  ```</>\nz");
}

TEST(Markdown, Tables) {
  use_utf8();
  EXPECT_EQ(marked("| a | n |\n|---|--:|\n| **x** | 1 |\n| \u4E16 | 200 |\nend"),
            "<1>a</> <2> \u2502 </>  <1>n</>\n<2>\u2500\u2500\u2500\u253C\u2500\u2500\u2500\u2500</>\n"
            "<1>x</> <2> \u2502 </>  1\n\u4E16<2> \u2502 </>200\nend");
  EXPECT_EQ(marked("| a | b |\n|:-:|---|\n| `x\\|y` | |\n"),
            " <1>a</> <2> \u2502 </><1>b</>\n<2>\u2500\u2500\u2500\u2500\u253C\u2500\u2500</>\n"
            "<36>x|y</><2> \u2502 </>\n");
}

TEST(Markdown, TablesKeepToTheTerminal) {
  const std::string text =
      "| first | second |\n|---|---|\n| one two three four five six seven | a word "
      "averyveryveryverylongwordwithoutanyspaces |\n";
  std::string line;
  for (const auto& [style, byte] : cells(shown(text, 40) + "\n")) {
    if (byte != '\n') {
      line += byte;
      continue;
    }
    EXPECT_LE(display_width(line), 40) << line;
    line.clear();
  }
}

TEST(Markdown, TextStreamsAndMarksWait) {
  Markdown markdown(80);
  EXPECT_EQ(markdown.add("some te"), "some");
  EXPECT_EQ(markdown.add("xt **bo"), " text");
  EXPECT_EQ(markdown.add("ld*"), "");
  EXPECT_EQ(markdown.add("* x"), " \x1b[1mbold\x1b[0m");
  EXPECT_EQ(markdown.add("\n| a |"), " x\n");
  EXPECT_EQ(markdown.finish(), "| a |\n");
}

TEST(Markdown, WhatNeverEndsIsNotHeldForEver) {
  Markdown markdown(80);
  const std::string out = markdown.add("**" + std::string(3 * kMostHeld, 'x'));
  EXPECT_GT(out.size(), 3 * kMostHeld - 80);
  EXPECT_EQ(out + markdown.finish(), "**" + std::string(3 * kMostHeld, 'x'));
}

TEST(Markdown, NoControlsGetThrough) {
  EXPECT_EQ(shown("a\x1b[2J`\x1b]52;c;x\x07`"), "a\u241B[2J\x1b[36m\u241B]52;c;x\u2407\x1b[0m");
}

// Random texts of what Markdown is made of, cut anywhere.
TEST(Markdown, PiecesDoNotMatter) {
  const std::vector<std::string> parts = {"*",  "**",    "_",    "`",   "``",     "```", "~~",    "[",   "](",
                                          ")",  "<br>",  "<",    ">",   "\\",     "\\(", "&amp;", "&",   "$$",
                                          "|",  "|---|", "#",    "# ",  "- ",     "1. ", "> ",    " ",   "\n",
                                          "\n", "a",     "word", "x y", "\u00E9", "---", "[x] ",  "\n\n"};
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += parts[random() % parts.size()];
    Markdown markdown(30);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      size_t length = 1 + random() % 5;
      while (at + length < text.size() && (text[at + length] & 0xC0) == 0x80) ++length;
      out += markdown.add(text.substr(at, length));
      at += length;
    }
    out += markdown.finish();
    ASSERT_EQ(cells(out), cells(shown(text, 30))) << text;
  }
}

TEST(Markdown, LongLinesPiecesDoNotMatter) {
  std::mt19937 random(2);
  for (const char* mark : {"*", "`", "_", "[", "\\(", "~~", "**"}) {
    for (size_t length = kMostHeld - 8; length < kMostHeld + 8; ++length) {
      const std::string text = "x " + std::string(mark) + std::string(length, 'y') + mark + " z* z`";
      Markdown markdown(80);
      std::string out;
      for (const char c : text) out += markdown.add(std::string(1, c));
      out += markdown.finish();
      ASSERT_EQ(cells(out), cells(shown(text))) << mark << length;
    }
  }
}

TEST(Markdown, TextIsBrokenBetweenWordsAndCodeIsNot) {
  const std::string text = "# one two three\n- four five six\n```\nseven eight nine\n```\n";
  EXPECT_EQ(marked(text, 9),
            "<1;4>one two\nthree</>\n\u2022 four\nfive six\n<2>```</>\n<36>seven eight nine</>\n<2>```</>\n");
  Markdown plain(9, false);
  EXPECT_EQ(plain.add(text) + plain.finish(),
            "# one two\nthree\n- four\nfive six\n```\nseven eight nine\n```\n");
}

}  // namespace
}  // namespace moesaic::chat
