// How many threads work beside those that compute steps.
#pragma once

#include <algorithm>
#include <thread>

namespace moesaic {

// One for every four CPUs, at least one and at most four: more would take time from the steps.
inline int helper_threads() {
  constexpr int kMost = 4, kCpusPerThread = 4;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / kCpusPerThread, 1, kMost);
}

}  // namespace moesaic
