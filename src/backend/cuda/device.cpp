#include "backend/cuda/device.h"

#include "base/error.h"

namespace moesaic::cuda {

Status check(cudaError_t code, const std::string& what) {
  if (code == cudaSuccess) return {};
  const StatusCode kind =
      code == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kInternal;
  return error(kind, "cuda: {}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

Result<DeviceBuffer> DeviceBuffer::allocate(size_t bytes, const std::string& what) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  if (cudaMalloc(&buffer.data_, bytes) != cudaSuccess) {
    size_t available = 0, total = 0;
    cudaGetLastError();
    cudaMemGetInfo(&available, &total);
    return error(StatusCode::kOutOfMemory, "cuda: {:.2f} GB for {} do not fit: {:.2f} of {:.2f} GB are free",
                 static_cast<double>(bytes) / 1e9, what, static_cast<double>(available) / 1e9,
                 static_cast<double>(total) / 1e9);
  }
  buffer.bytes_ = bytes;
  RETURN_IF_ERROR(check(cudaMemset(buffer.data_, 0, bytes), what));
  // The backend's stream does not wait for the default stream: what it writes next could be zeroed
  // afterwards.
  RETURN_IF_ERROR(check(cudaStreamSynchronize(nullptr), what));
  return buffer;
}

Result<PinnedBuffer> PinnedBuffer::allocate(size_t bytes) {
  PinnedBuffer buffer;
  RETURN_IF_ERROR(check(cudaMallocHost(&buffer.data_, bytes), "page-locked host memory"));
  return buffer;
}

}  // namespace moesaic::cuda
