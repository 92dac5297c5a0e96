// A file that a fatal signal leaves behind where the thread was in moesaic's code, so that the program which
// called it can go without it the next time.
#pragma once

#include <string>

namespace moesaic::python {

// After this call, a thread that dies of a signal within an OwnCode first writes `text` and the signal's name
// to the file at `path`, and `line` to standard error. The handler that was there before runs next. Paths and
// texts are cut at 1,000 bytes. A second call replaces path, text and line.
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
