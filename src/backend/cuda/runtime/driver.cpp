#include "backend/cuda/runtime/driver.h"

#include <cuda_runtime.h>

#include "base/error.h"

namespace moesaic::cuda {

void* driver_function(const char* name, unsigned since) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableDefault, &result);
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
}

Status check_driver(CUresult code, const std::string& what) {
  if (code == CUDA_SUCCESS) return {};
  constexpr unsigned kSince = 6000;
  static auto* const kName = driver_function<decltype(cuGetErrorName)>("cuGetErrorName", kSince);
  const char* name = nullptr;
  if (kName != nullptr) kName(code, &name);
  return error(code == CUDA_ERROR_OUT_OF_MEMORY ? StatusCode::kOutOfMemory : StatusCode::kInternal,
               "cuda: {}: {}", what, name != nullptr ? name : "the driver's error");
}

}  // namespace moesaic::cuda
