#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace moesaic::app {

std::string size_text(int64_t bytes) {
  constexpr double kGiga = 1e9, kMega = 1e6;
  const auto b = static_cast<double>(bytes);
  return b >= kGiga ? fmt::format("{:.1f} GB", b / kGiga) : fmt::format("{:.1f} MB", b / kMega);
}

ProgressLine::ProgressLine() : watched_(isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(const std::string& text) {
  if (!watched_) return;
  const size_t rest = width_ - std::min(width_, text.size());
  std::fprintf(stderr, "\r%s%s%s", text.c_str(), std::string(rest, ' ').c_str(),
               std::string(rest, '\b').c_str());
  width_ = text.size();
}

void ProgressLine::clear() {
  if (width_ == 0) return;
  std::fprintf(stderr, "\r%s\r", std::string(width_, ' ').c_str());
  width_ = 0;
}

}  // namespace moesaic::app
