// Which device a thread's calls go to.
#pragma once

#include <cuda_runtime.h>

#include "moesaic/status.h"

namespace moesaic::cuda {

// The calls that a guard makes; a test has others.
struct DeviceCalls {
  bool (*has_context)();  // of the calling thread
  cudaError_t (*get)(int* device);
  cudaError_t (*set)(int device);
};
extern const DeviceCalls kDeviceCalls;  // CUDA's

// Makes `device` the calling thread's while it lives, then the thread's own again. A thread that has used no
// device yet keeps this one: since CUDA 12, to set another would take memory on it for a context. Costs one
// query of CUDA's thread-local state where the device is the thread's already.
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
