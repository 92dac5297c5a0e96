// Ctrl-C during work that can end in an orderly way.
#pragma once

#include <csignal>

namespace moesaic::app {

// While it exists, the first SIGINT only sets the flag and the second ends the program. Before and after it,
// every SIGINT ends the program at once: reading and loading leave nothing to undo. One at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  bool requested() const;

 private:
  struct sigaction before_ = {};
};

}  // namespace moesaic::app
