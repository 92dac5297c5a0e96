// For tests: where clients that split a stream by Python's str.splitlines would cut it.
#pragma once

#include <string>

namespace moesaic::openai {

// Everything that splitlines ends a line at, alone and beside each other.
inline constexpr const char* kLineBreaks =
    "a\nb\rc\r\nd\x0B\x0C\x1C\x1D\x1E\x65\xC2\x85\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xA8\xE2\x80\xA7\xC2\x84z";

// True if a line of a stream would be cut somewhere else than at its '\n'.
inline bool cuts_lines(const std::string& stream) {
  for (const char* mark :
       {"\r", "\x0B", "\x0C", "\x1C", "\x1D", "\x1E", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"}) {
    if (stream.find(mark) != std::string::npos) return true;
  }
  return false;
}

}  // namespace moesaic::openai
