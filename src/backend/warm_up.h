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
// Compiles the kernels that this program has no machine code for, and keeps them on disk. architecture:
// "sm_120a", or empty for that of the first cuda device. Returns the architecture. report: called once for
// each kernel, one call at a time, not at all if none is missing; may be empty. threads: 0: one per core.
Result<std::string> warm_up(const std::string& architecture, int threads,
                            const std::function<void(const WarmKernel&)>& report);

}  // namespace moesaic
