// The work that compiling an answer's format may cost, so that each compiles or is refused soon.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stop_token>
#include <string_view>

namespace moesaic::grammar {

class Work {
 public:
  // Steps of some 20 ns, of one schema, pattern or grammar, and of all in a format.
  static constexpr uint64_t kLimit = 2'000'000, kTotalLimit = 10'000'000;

  // cancel: ends the work early; what it gives is then meaningless.
  explicit Work(std::stop_token cancel = {}) : cancel_(std::move(cancel)) {}

  void add(uint64_t steps) { done_ += steps; }
  uint64_t done() const { return done_; }
  // To be asked in every loop that adds.
  bool spent() const { return done_ > limit_ || cancel_.stop_requested(); }
  bool cancelled() const { return cancel_.stop_requested(); }
  // The work from here on is another schema's.
  void begin_next() { limit_ = std::min(done_ + kLimit, kTotalLimit); }

 private:
  uint64_t done_ = 0, limit_ = kLimit;
  std::stop_token cancel_;
};
inline constexpr std::string_view kTooMuchWork =
    "its references, combinations and patterns take too much work: simplify it";

}  // namespace moesaic::grammar
