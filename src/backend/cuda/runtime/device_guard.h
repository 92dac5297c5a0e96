// Which device a thread's calls go to.
#pragma once

#include <cuda_runtime.h>

#include "moesaic/status.h"

namespace moesaic::cuda {

// The calls that a guard makes; a test has others.
struct DeviceCalls {
  bool (*has_context)();  // true if the calling thread has a context
  cudaError_t (*get)(int* device);
  cudaError_t (*set)(int device);
};
extern const DeviceCalls kDeviceCalls;  // CUDA's

// Sets the calling thread's current device while it lives, then restores the previous one. A thread that has
// used no device yet keeps this one: since CUDA 12, setting another would create a context there, which takes
// memory. If the device is current already, the cost is one query of thread-local state.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device, const DeviceCalls& calls = kDeviceCalls);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  cudaError_t code() const { return code_; }
  Status status() const;

 private:
  const DeviceCalls& calls_;
  int restored_ = -1;  // -1: none
  cudaError_t code_ = cudaSuccess;
};

}  // namespace moesaic::cuda
