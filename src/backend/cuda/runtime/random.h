// Random activations for measurements.
#pragma once

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// x[i] of about a normal distribution of variance 1, a function of seed and i.
Status fill_random(float* x, int64_t count, uint32_t seed, cudaStream_t stream);

}  // namespace moesaic::cuda
