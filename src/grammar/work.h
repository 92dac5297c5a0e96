// The work that compiling one schema may cost, so that each compiles or is refused soon.
#pragma once

#include <cstdint>
#include <string_view>

namespace moesaic::grammar {

struct Work {
  static constexpr uint64_t kLimit = 2'000'000;  // steps of some 20 ns
  uint64_t done = 0;
  void add(uint64_t steps) { done += steps; }
  bool spent() const { return done > kLimit; }
};
inline constexpr std::string_view kTooMuchWork =
    "its references, combinations and patterns take too much work: simplify it";

}  // namespace moesaic::grammar
