// Lines that a person types at a terminal, edited in the manner of Emacs, with a history (libedit).
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace moesaic::chat {

enum class Typed { kMessage, kNothing, kInterrupt, kEnd };

struct Input {
  Typed typed = Typed::kMessage;
  std::string text;  // kMessage: without the end of the line, pasted texts and all
};

// Return sends the line; Alt-Return and Ctrl-J begin another one in it, and so do a backslash at its end and
// three quotation marks before it, up to the next three. What is pasted is part of the line, whatever it
// holds: long texts stand in it by name (pastes.h). Ctrl-C drops the line (kInterrupt: there was none),
// Ctrl-D in an empty one is the end. Draws on standard error. Between two lines Ctrl-C is a signal, and what
// is typed waits, unseen, for the next. One at a time: it has the Terminal.
class LineEditor {
 public:
  // words: what Tab completes the first word of a line to. Empty where standard input or error is no
  // terminal, or one that cannot move its cursor.
  static std::unique_ptr<LineEditor> create(std::vector<std::string> words);
  virtual ~LineEditor() = default;
  virtual Input read(const std::string& prompt) = 0;
  virtual void remember(const std::string& message) = 0;
};

}  // namespace moesaic::chat
