#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "chat/terminal.h"
#include "chat/terminal_text.h"

namespace moesaic::app {

std::string size_text(int64_t bytes) {
  constexpr double kGiga = 1e9, kMega = 1e6;
  const auto b = static_cast<double>(bytes);
  return b >= kGiga ? fmt::format("{:.1f} GB", b / kGiga) : fmt::format("{:.1f} MB", b / kMega);
}

ProgressLine::ProgressLine() : watched_(isatty(STDERR_FILENO) != 0) {
  if (watched_) chat::use_utf8();
}

// A line that the terminal breaks could not be written over.
void ProgressLine::show(const std::string& text) {
  if (!watched_) return;
  const std::string shown(chat::first_columns(text, std::max(1, chat::columns(STDERR_FILENO) - 1)));
  const auto width = static_cast<size_t>(chat::display_width(shown));
  const size_t rest = width_ - std::min(width_, width);
  std::fprintf(stderr, "\r%s%s%s", shown.c_str(), std::string(rest, ' ').c_str(),
               std::string(rest, '\b').c_str());
  width_ = width;
}

void ProgressLine::clear() {
  if (width_ == 0) return;
  std::fprintf(stderr, "\r%s\r", std::string(width_, ' ').c_str());
  width_ = 0;
}

}  // namespace moesaic::app
