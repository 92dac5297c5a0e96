// Questions to the current device by a kernel: whether there is code for it, what that code may use, and the
// read bandwidth, the ceiling beside which figures are printed.
#pragma once

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// cudaSuccess where this program holds code for the current device.
cudaError_t probe_code();
// The compute capability that this code was compiled for, 10 major + minor.
cudaError_t read_code_version(int& version);
// True where the stream's part of the device runs a cluster of so many CTAs (at most 16) of 1,024 threads.
bool runs_clusters(int ctas, cudaStream_t stream = nullptr);
// GB/s of one pass over 2 GB (less where memory is short), best of a few.
Result<double> measure_read_bandwidth(cudaStream_t stream);

}  // namespace moesaic::cuda
