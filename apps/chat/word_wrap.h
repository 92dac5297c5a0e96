// Breaks text into a terminal's lines between words, while the text comes.
#pragma once

#include <string>
#include <string_view>

namespace moesaic::chat {

// Takes printable text with SGR sequences in it. A word goes out when it has ended, so nothing is taken back,
// and what goes out does not depend on the pieces. A word that no line holds is left to the terminal to
// break.
class WordWrap {
 public:
  explicit WordWrap(int columns) : columns_(columns) {}

  void text(std::string_view text);
  // Code and tables, whose lines stay as they are.
  void verbatim(std::string_view text);
  // Returns what can be printed now, each part once.
  std::string take();
  // The same at the end of the text, with the last word.
  std::string finish();

 private:
  void put(std::string_view character);
  void end_word();
  void end_line();

  int columns_;
  std::string out_;
  std::string spaces_, word_;  // they have not gone out
  int word_width_ = 0;
  bool visible_ = false;  // the word is more than styles
  bool wide_ = false;     // its last character takes two columns
  bool joined_ = false;   // its last character joins the next to it
  bool begun_ = false;    // the word is longer than a line, and its beginning has gone out
  int column_ = 0;        // behind what went out
};

}  // namespace moesaic::chat
