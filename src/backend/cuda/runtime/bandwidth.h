// The device's read bandwidth, measured: the ceiling beside which figures are printed.
#pragma once

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// cudaSuccess where this program holds code for the current device.
cudaError_t probe_code();
// GB/s of one pass over 2 GB (less where memory is short), best of a few.
Result<double> measure_read_bandwidth(cudaStream_t stream);

}  // namespace moesaic::cuda
