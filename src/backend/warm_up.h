// Kernels compiled before they are needed.
#pragma once

#include <functional>
#include <string>

#include "moesaic/status.h"

namespace moesaic {

// A kernel that warm_up() compiled, or found on disk.
struct WarmKernel {
  std::string name;
  bool cached = false;
  double seconds = 0;
};
// Compiles what this program has no machine code for, so that it is found on disk later: for an architecture,
// "sm_120a", or if that is empty for the first cuda device. Gives the architecture; nothing is reported where
// nothing lacks. report: may be empty; one call at a time. threads: 0: one per core.
Result<std::string> warm_up(const std::string& architecture, int threads,
                            const std::function<void(const WarmKernel&)>& report);

}  // namespace moesaic
