#include "chat/pastes.h"

#include <gtest/gtest.h>

#include "chat/terminal_text.h"

namespace moesaic::chat {
namespace {

TEST(Pastes, ShortTextStaysInTheLine) {
  Pastes pastes;
  EXPECT_EQ(pastes.shown("a short text"), "a short text");
  EXPECT_EQ(pastes.expand("[paste 1: 2 lines]"), "[paste 1: 2 lines]");
}

TEST(Pastes, LongTextIsNamedAndComesBack) {
  Pastes pastes;
  const std::string lines = "int main() {\n}", bytes(20'000, 'x');
  EXPECT_EQ(pastes.shown(lines), "[paste 1: 2 lines]");
  EXPECT_EQ(pastes.shown(bytes), "[paste 2: 20000 bytes]");
  EXPECT_EQ(pastes.shown(lines), "[paste 1: 2 lines]");
  EXPECT_EQ(pastes.expand("a [paste 2: 20000 bytes] b [paste 1: 2 lines]."),
            "a " + bytes + " b " + lines + ".");
}

TEST(Pastes, EndsOfLinesAndControls) {
  EXPECT_EQ(clean_paste("a\nb\n"), "a\nb");      // returns
  EXPECT_EQ(clean_paste("a\rb"), "a\nb");        // line feeds
  EXPECT_EQ(clean_paste("a\n\rb\n\r"), "a\nb");  // both
  EXPECT_EQ(clean_paste("a\n\nb"), "a\n\nb");
  EXPECT_EQ(clean_paste("\ta\x1b[31m\x03z"), "\ta[31mz");
}

TEST(TerminalText, ControlsAreShown) {
  EXPECT_EQ(printable("a\x1b]0;x\x07\r\n\tb"), "a\u241B]0;x\u2407\n\tb");
  EXPECT_EQ(printable("\x7f\xC2\x9B\xff"), "\u2421\uFFFD\uFFFD");
  EXPECT_EQ(printable_line("a\x1b[m\r\n\tb"), "a\u241B[m  b");
  EXPECT_EQ(printable("Stra\u00DFe \u4E16"), "Stra\u00DFe \u4E16");
}

TEST(TerminalText, Columns) {
  use_utf8();
  EXPECT_EQ(display_width("Stra\u00DFe"), 6);
  EXPECT_EQ(display_width("\u4E16\u754C"), 4);
  EXPECT_EQ(first_columns("\u4E16\u754C", 3), "\u4E16");
}

}  // namespace
}  // namespace moesaic::chat
