// An object with threads or locks keeps one of these: a forked process has a copy of the object but not of
// its threads, and cannot use it.
#pragma once

#include <unistd.h>

#include "base/error.h"

namespace moesaic {

class OwnProcess {
 public:
  // True in the process that made it, false in one that was forked.
  bool here() const { return getpid() == pid_; }
  Status check() const {
    return here() ? Status()
                  : invalid(
                        "the model was opened by process {}, which forked this one: open it here, after the "
                        "fork",
                        pid_);
  }

 private:
  pid_t pid_ = getpid();
};

}  // namespace moesaic
