// CUDA's errors as values, and the note of a launch.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "moesaic/status.h"

namespace moesaic::cuda {

// `what` names the op or the thing: "load", "layer 3 experts".
Status check(cudaError_t code, const std::string& what);

// Tells the LaunchLog (launch_log.h) of the op that is running, if any.
void note_launch(const void* kernel, dim3 grid, dim3 block, size_t shared);

}  // namespace moesaic::cuda
