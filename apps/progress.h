// A long command says how far it is, on standard error if that is a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace moesaic::app {

// "13.8 GB", "460.0 MB".
std::string size_text(int64_t bytes);

// A line that is written over itself, as much of it as the terminal is wide. It says nothing where nobody
// watches. clear() before anything else is printed.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text);
  void clear();
  bool watched() const { return watched_; }

 private:
  bool watched_;
  size_t width_ = 0;  // columns of what is shown
};

}  // namespace moesaic::app
