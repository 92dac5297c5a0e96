// The terminal of a conversation.
#pragma once

#include <termios.h>

#include <string_view>

namespace moesaic::chat {

// While it exists, pasted text comes between marks (bracketed paste), and a signal that ends or stops the
// program gives the terminal back as it was before. One at a time.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // While a line is edited, SIGINT ends the program: Ctrl-C is a key. Otherwise one that nobody expects (an
  // InterruptScope does) is passed over, as a Ctrl-C that came when the answer had just ended; the second
  // ends.
  void set_editing(bool editing);
};

// The width of a terminal; 80 where it does not say.
int columns(int file);

// Prints a line, or several, for people on standard error. A terminal gets what it would obey as pictures,
// and lines that are broken between words.
void notice(std::string_view text);

// The terminal of standard error has changed its size since the last call.
bool resized();

}  // namespace moesaic::chat
