// Ends a process that does not end by itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "base/descriptor.h"

namespace moesaic::server {

// A thread that waits for a time and then ends the process at once, with kStatus and a line in the log: some
// thread that had to be joined could not be.
class ExitWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kStatus = 1;

  ExitWatch() = default;
  ~ExitWatch() { call_off(); }
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

  // Starts the thread, or changes its time. log: a file descriptor, of which a copy is kept.
  void end_at(Clock::time_point time, int log);

 private:
  void call_off();

  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Clock::time_point time;
    Descriptor log;
    bool off = false;
    void run();
  };
  std::shared_ptr<State> state_;
};

}  // namespace moesaic::server
