// A file that a fatal signal leaves behind where the thread was in moesaic's code, so that the program which
// called it can go without it the next time.
#pragma once

#include <string>

namespace moesaic::python {

// From now on: where a thread dies of a signal within an OwnCode, the file is made anew with `text` and the
// signal's name, and `line` goes to standard error. What handled the signal before comes next. Names and
// texts of more than 1,000 bytes are cut. A second call replaces the first one's words.
void note_crashes(const std::string& path, const std::string& text, const std::string& line);

// While it lives, this thread is in moesaic's code.
class OwnCode {
 public:
  OwnCode();
  ~OwnCode();
  OwnCode(const OwnCode&) = delete;
  OwnCode& operator=(const OwnCode&) = delete;
};

}  // namespace moesaic::python
