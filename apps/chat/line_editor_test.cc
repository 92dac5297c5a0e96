#include "chat/line_editor.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

namespace moesaic::chat {
namespace {

// A terminal in place of standard input and error, at which a test types.
class LineEditing : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(openpty(&keyboard_, &screen_, nullptr, nullptr, nullptr), 0);
    for (size_t i = 0; i < kStreams.size(); ++i) {
      kept_.at(i) = dup(kStreams.at(i));
      dup2(screen_, kStreams.at(i));
    }
    setenv("TERM", "xterm", 1);
  }
  void TearDown() override {
    for (size_t i = 0; i < kStreams.size(); ++i) {
      dup2(kept_.at(i), kStreams.at(i));
      close(kept_.at(i));
    }
    close(screen_);
    close(keyboard_);
  }
  // Types these keys and returns what is sent. Return is \r.
  std::string typed(const std::string& keys) {
    EXPECT_EQ(write(keyboard_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
    return editor().read("> ").text;
  }
  // One for all tests, and never ended: libedit does not free all that it has.
  static LineEditor& editor() {
    static LineEditor& editor = *LineEditor::create({}).release();
    return editor;
  }
  static std::string pasted(const std::string& text) { return "\x1b[200~" + text + "\x1b[201~"; }

  static constexpr std::array<int, 2> kStreams = {STDIN_FILENO, STDERR_FILENO};
  int keyboard_ = -1, screen_ = -1;
  std::array<int, 2> kept_{};
};

TEST_F(LineEditing, QuotesAndBackslashesOfALineAreTakenOff) {
  EXPECT_EQ(typed("a\\\rb\r"), "a\nb");
  EXPECT_EQ(typed("\"\"\"a\rb\"\"\" c\r"), "a\nb c");
}

TEST_F(LineEditing, QuotesAndBackslashesOfAPasteStay) {
  EXPECT_EQ(typed(pasted("\"\"\"Doc.\"\"\"\rx = 1") + "\r"), "\"\"\"Doc.\"\"\"\nx = 1");
  EXPECT_EQ(typed(pasted("make \\\r  all \\") + "\r"), "make \\\n  all \\");
  EXPECT_EQ(typed("\"\"\"see " + pasted("\"\"\"Doc.\"\"\"\ry = 1") + "\rthere\"\"\"\r"),
            "see \"\"\"Doc.\"\"\"\ny = 1\nthere");
}

}  // namespace
}  // namespace moesaic::chat
