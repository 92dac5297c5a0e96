// Work in a process of its own, whose crash or hang leaves the caller alone.
#pragma once

#include <functional>
#include <string>

namespace moesaic::app {

enum class ChildEnd {
  kExit,
  kSignal,
  kTimeOut,     // ended at its limit
  kStuck,       // it did not even end when it was killed, as a driver can hold a process
  kInterrupted  // ended because the caller wanted it
};
struct ChildOutcome {
  ChildEnd end = ChildEnd::kExit;
  int code = 0;  // exit status or signal
  double seconds = 0;
  std::string output;  // standard output and error together, the last 256 KB of them

  bool ok() const { return end == ChildEnd::kExit && code == 0; }
};

// Runs work() in a fork of this process, which must have one thread and never have used a GPU: neither
// threads nor CUDA's contexts come along. What work() returns is the exit status. The child dies with the
// caller, leaves no core file, and is the first to go where memory runs out. goes_on is asked about ten times
// a second, with the seconds so far, whether to wait longer.
ChildOutcome run_child(double limit_seconds, const std::function<int()>& work,
                       const std::function<bool(double)>& goes_on);

// "ok, 1.2 s", "exit status 1 after 0.3 s", "signal 11 (Segmentation fault) after 2.0 s"
std::string describe(const ChildOutcome& outcome);

}  // namespace moesaic::app
