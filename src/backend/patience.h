// The limit of a wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace moesaic {

// Adds up the time of a wait that asks again and again. The time during which the whole process is stopped or
// the machine sleeps hardly counts: what lies between two questions counts for one slice at most.
class Patience {
 public:
  using Seconds = std::chrono::duration<double>;

  explicit Patience(double limit) : limit_(limit) {}

  Seconds slice() const { return limit_ / kSlices; }
  // Call it at least once in a slice.
  bool ended() {
    const Clock::time_point now = Clock::now();
    waited_ += std::min<Seconds>(now - std::exchange(last_, now), slice());
    return waited_ >= limit_;
  }
  Seconds waited() const { return waited_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSlices = 20;

  const Seconds limit_;
  Seconds waited_{0};
  Clock::time_point last_ = Clock::now();
};

}  // namespace moesaic
