// Asks about one GPU, without a backend.
#pragma once

#include "moesaic/status.h"

namespace moesaic {

// An error of the operator `op` where this program cannot run on the GPU; kUnsupported in a build without
// CUDA. CUDA makes its context on this GPU alone.
Status check_cuda_device(const char* op, int device);

}  // namespace moesaic
