// How long something took.
#pragma once

#include <chrono>

namespace moesaic {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace moesaic
