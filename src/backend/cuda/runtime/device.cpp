#include "backend/cuda/runtime/device.h"

#include <limits>

#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/runtime/features.h"
#include "backend/cuda/runtime/free_memory.h"
#include "base/error.h"

namespace moesaic::cuda {

// The runtime keeps a thread's last error. Code that asks for it behind a launch of its own, here or in the
// program that links this library, would take it for the launch's.
Status check(cudaError_t code, const std::string& what) {
  if (code == cudaSuccess) return {};
  cudaGetLastError();
  const StatusCode kind =
      code == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kInternal;
  return error(kind, "cuda: {}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

Result<int> current_device() {
  int device = 0;
  RETURN_IF_ERROR(check(cudaGetDevice(&device), "device"));
  return device;
}

namespace {

// The driver would only refuse what is more than the device has.
Status check_shared(const void* kernel, size_t dynamic) {
  ASSIGN_OR_RETURN(const size_t most, most_shared());
  if (most == std::numeric_limits<size_t>::max()) return {};
  cudaFuncAttributes own{};
  RETURN_IF_ERROR(check(cudaFuncGetAttributes(&own, kernel), "a kernel's attributes"));
  const size_t wanted = own.sharedSizeBytes + dynamic;
  if (wanted <= most) return {};
  return error(StatusCode::kUnsupported,
               "cuda: a kernel wants {} bytes of shared memory, MOESAIC_MAX_SHARED allows {}", wanted, most);
}

}  // namespace

Status set_attributes(const void* kernel, const KernelAttributes& attributes) {
  RETURN_IF_ERROR(check_shared(kernel, attributes.max_shared));
  cudaError_t code = cudaSuccess;
  const auto set = [&](cudaFuncAttribute attribute, int value) {
    if (code == cudaSuccess) code = cudaFuncSetAttribute(kernel, attribute, value);
  };
  if (attributes.prefer_shared)
    set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (attributes.max_shared > 0)
    set(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(attributes.max_shared));
  if (attributes.large_clusters) set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  return check(code, "a kernel's attributes");
}

Result<DeviceBuffer> DeviceBuffer::allocate_unset(size_t bytes, const std::string& what) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  if (cudaMalloc(&buffer.data_, bytes) != cudaSuccess) {
    cudaGetLastError();
    return error(StatusCode::kOutOfMemory,
                 "cuda: {:.2f} GB for {} do not fit: {:.2f} GB are free; does another program use the device "
                 "(nvidia-smi)?",
                 static_cast<double>(bytes) / 1e9, what, free_memory() / 1e9);
  }
  buffer.bytes_ = bytes;
  return buffer;
}

Result<DeviceBuffer> DeviceBuffer::allocate(size_t bytes, const std::string& what) {
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_unset(bytes, what));
  if (bytes == 0) return buffer;
  RETURN_IF_ERROR(check(cudaMemset(buffer.data_, 0, bytes), what));
  // The backend's stream does not wait for the default stream: what it writes next could be zeroed
  // afterwards. Not the whole device: that would end another thread's stream capture with an error.
  RETURN_IF_ERROR(check(cudaStreamSynchronize(nullptr), what));
  return buffer;
}

Status copy_to_device(void* to, const void* from, size_t bytes, const std::string& what) {
  RETURN_IF_ERROR(check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), what));
  return check(cudaStreamSynchronize(nullptr), what);
}

double page_bytes(size_t bytes) {
  constexpr size_t kPage = 2u << 20, kShares = 1u << 20;
  return static_cast<double>(bytes < kShares ? bytes : (bytes + kPage - 1) / kPage * kPage);
}

Status allocate(const std::vector<Wanted>& list, const std::string& what) {
  for (const Wanted& w : list) {
    ASSIGN_OR_RETURN(*w.buffer, DeviceBuffer::allocate(w.bytes, what));
  }
  return {};
}

double sum(const std::vector<Wanted>& list) {
  double bytes = 0;
  for (const Wanted& w : list) bytes += page_bytes(w.bytes);
  return bytes;
}

std::string_view compiled_code() { return MOESAIC_CUDA_CODE; }

namespace {

// Hopper's own kernels need the instructions of its code alone.
std::string architecture_option(int major, int minor) {
  return fmt::format("-DCMAKE_CUDA_ARCHITECTURES={}{}{}-real", major, minor, major == 9 ? "a" : "");
}

}  // namespace

std::string no_code_for(int device) {
  cudaDeviceProp p{};
  const DeviceGuard guard(device);
  cudaError_t code = guard.code();
  if (code == cudaSuccess) code = cudaGetDeviceProperties(&p, device);
  if (code == cudaSuccess) code = probe_code();
  if (code == cudaSuccess) return {};
  cudaGetLastError();
  if (code == cudaErrorUnsupportedPtxVersion)
    return fmt::format("the driver is older than the PTX in this build: update it, or build moesaic with {}",
                       architecture_option(p.major, p.minor));
  if (code != cudaErrorNoKernelImageForDevice && code != cudaErrorInvalidDeviceFunction)
    return cudaGetErrorString(code);
  constexpr int kLeastMajor = 8;
  const std::string what_to_do =
      p.major < kLeastMajor ? "moesaic needs 8.0 or later"
                            : fmt::format("build moesaic with {}", architecture_option(p.major, p.minor));
  return fmt::format("{} has compute capability {}.{}, this build has code for {} only; {}", p.name, p.major,
                     p.minor, compiled_code(), what_to_do);
}

Status check_on_device(const char* op, const char* name, const void* pointer, int device) {
  if (pointer == nullptr) return invalid("{}: {} is missing", op, name);
  cudaPointerAttributes attributes{};
  RETURN_IF_ERROR(check(cudaPointerGetAttributes(&attributes, pointer), name));
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    return invalid("{}: {} is not in a GPU's memory", op, name);
  if (attributes.device != device)
    return invalid("{}: {} is on cuda:{}, not on cuda:{}", op, name, attributes.device, device);
  return {};
}

bool shares_host_memory() {
  const Result<int> device = current_device();
  int integrated = 0;
  if (device.ok()) cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, device.value());
  return integrated != 0;
}

Result<PinnedBuffer> PinnedBuffer::allocate(size_t bytes) {
  PinnedBuffer buffer;
  RETURN_IF_ERROR(check(cudaMallocHost(&buffer.data_, bytes), "page-locked host memory"));
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace moesaic::cuda
