// Signals during work that can end in an orderly way.
#pragma once

#include <csignal>
#include <string>
#include <vector>

namespace moesaic::app {

// The kernel keeps signals without a handler from PID 1, which the program is in a container: SIGINT and
// SIGTERM get one there that ends it.
void obey_signals_as_init();

// While it exists, the first SIGINT only sets the flag; the second does what one does before and after: it
// ends the program at once, as reading and loading leave nothing to undo. A SIGINT that is ignored, as in a
// script's background jobs, stays ignored. One at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  bool requested() const;
};

// While it exists, the signals that end a program remove these files before they do. One that is ignored, as
// SIGHUP is under nohup, stays ignored. One at a time.
class RemoveOnSignal {
 public:
  explicit RemoveOnSignal(std::vector<std::string> paths);
  ~RemoveOnSignal();
  RemoveOnSignal(const RemoveOnSignal&) = delete;
  RemoveOnSignal& operator=(const RemoveOnSignal&) = delete;
};

}  // namespace moesaic::app
