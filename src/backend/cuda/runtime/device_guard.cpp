#include "backend/cuda/runtime/device_guard.h"

#include <cuda.h>

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {
namespace {

using GetContext = decltype(&cuCtxGetCurrent);

GetContext find_get_context() {
  constexpr unsigned kSince = 4000;  // CUDA 4.0
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, kSince, cudaEnableDefault, &result);
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<GetContext>(function)
                                                                      : nullptr;
}

bool has_context() {
  static const GetContext kGet = find_get_context();
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
