// Memory with an owner, and what a kernel may be told before it is launched. With it come errors (check.h)
// and launches (launch.h).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/runtime/check.h"
#include "backend/cuda/runtime/launch.h"
#include "backend/cuda/runtime/per_device.h"
#include "backend/cuda/runtime/step_wait.h"
#include "moesaic/status.h"

namespace moesaic::cuda {

// Memory that kFree() takes back.
template <cudaError_t (*kFree)(void*)>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  ~OwnedMemory() {
    if (!device_is_lost()) kFree(data_);
  }
  OwnedMemory(OwnedMemory&& other) noexcept { swap(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 protected:
  void swap(OwnedMemory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Device memory.
struct DeviceBuffer : OwnedMemory<cudaFree> {
  // Zeroed. what: for the error, "the KV cache".
  static Result<DeviceBuffer> allocate(size_t bytes, const std::string& what);
  // Not zeroed: touches no stream.
  static Result<DeviceBuffer> allocate_unset(size_t bytes, const std::string& what);
};

// Page-locked host memory, which the device copies from and to by itself.
struct PinnedBuffer : OwnedMemory<cudaFreeHost> {
  static Result<PinnedBuffer> allocate(size_t bytes);
};

// Bytes that the device gives up for a buffer of so many bytes: from 1 MiB on whole pages of 2 MiB. Smaller
// ones share pages.
double page_bytes(size_t bytes);

// Memory to allocate, one of a list.
struct Wanted {
  DeviceBuffer* buffer;
  size_t bytes;
};
Status allocate(const std::vector<Wanted>& list, const std::string& what);
double sum(const std::vector<Wanted>& list);  // sum of page_bytes()

// Copies pageable memory of the host. When it returns the bytes are there for every stream: cudaMemcpy()
// alone may return before, and the backend's streams do not wait for the default stream.
Status copy_to_device(void* to, const void* from, size_t bytes, const std::string& what);

// The architectures that kernels were compiled for, as they are named to users.
std::string_view compiled_code();
// Empty where this program has code for the device, else the reason.
std::string no_code_for(int device);

// An error of the operator `op` where the pointer is not of the device's memory.
Status check_on_device(const char* op, const char* name, const void* pointer, int device);

// True if the current device is integrated: its memory is the host's.
bool shares_host_memory();

struct KernelAttributes {
  size_t max_shared = 0;  // bytes of dynamic shared memory; more than 48 KB must be asked for
  // Asks for the largest shared memory carveout, for kernels that run beside others: a multiprocessor with a
  // smaller one must become idle before the next kernel can have more.
  bool prefer_shared = false;
  bool large_clusters = false;  // clusters of more than 8 CTAs
};
// Holds for the current device only: call it through OncePerDevice (per_device.h).
Status set_attributes(const void* kernel, const KernelAttributes& attributes);
template <typename... Params>
Status set_attributes(void (*kernel)(Params...), const KernelAttributes& attributes) {
  return set_attributes(reinterpret_cast<const void*>(kernel), attributes);
}

}  // namespace moesaic::cuda
