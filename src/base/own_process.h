// Of what has threads or locks: a forked process has a copy of it without its threads, which nobody can use.
#pragma once

#include <unistd.h>

#include "base/error.h"

namespace moesaic {

class OwnProcess {
 public:
  // Whether this is the process that made it.
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
