#include "backend/cuda/runtime/device_guard.h"

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/driver.h"

namespace moesaic::cuda {
namespace {

bool has_context() {
  constexpr unsigned kSince = 4000;
  static auto* const kGet = driver_function<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent", kSince);
  CUcontext context = nullptr;
  return kGet == nullptr || (kGet(&context) == CUDA_SUCCESS && context != nullptr);
}

}  // namespace

const DeviceCalls kDeviceCalls = {.has_context = has_context, .get = cudaGetDevice, .set = cudaSetDevice};

DeviceGuard::DeviceGuard(int device, const DeviceCalls& calls) : calls_(calls) {
  int current = -1;
  code_ = calls_.get(&current);
  if (code_ != cudaSuccess || current == device) return;
  const bool used = calls_.has_context();
  code_ = calls_.set(device);
  if (code_ == cudaSuccess && used) restored_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (restored_ >= 0) calls_.set(restored_);
}

Status DeviceGuard::status() const { return check(code_, "device"); }

}  // namespace moesaic::cuda
