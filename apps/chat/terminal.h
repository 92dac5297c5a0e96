// The terminal of a conversation.
#pragma once

#include <termios.h>

namespace moesaic::chat {

// While it exists, pasted text comes between marks (bracketed paste), and a signal that ends or stops the
// program gives the terminal back as it was before. One at a time.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // For the time of an answer: what is typed meanwhile is neither shown nor cut into lines, and is there for
  // the next prompt. Ctrl-C and Ctrl-Z act at once.
  void hold_input();
  void release_input();
};

// The terminal of standard error has changed its size since the last call.
bool resized();

}  // namespace moesaic::chat
