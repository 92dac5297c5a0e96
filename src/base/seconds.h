// How long something took.
#pragma once

#include <chrono>

namespace moesaic {

inline double seconds_between(std::chrono::steady_clock::time_point from,
                              std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return seconds_between(begin, std::chrono::steady_clock::now());
}

}  // namespace moesaic
