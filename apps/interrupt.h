// Ctrl-C during work that can end in an orderly way.
#pragma once

#include <csignal>

namespace moesaic::app {

// While it exists, the first SIGINT only sets the flag; the second does what one does before and after: it
// ends the program at once, as reading and loading leave nothing to undo. One at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  bool requested() const;
};

}  // namespace moesaic::app
