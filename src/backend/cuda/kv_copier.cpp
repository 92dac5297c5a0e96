#include "backend/cuda/kv_copier.h"

#include <cstring>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/device_guard.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

class CudaKvCopier final : public KvCopier {
 public:
  CudaKvCopier(int device, std::span<const Layer> layers, size_t page_bytes, const StepWait& wait)
      : device_(device), layers_(layers), half_(page_bytes / 2), wait_(wait) {}
  ~CudaKvCopier() override {
    if (device_is_lost()) return;
    const DeviceGuard guard(device_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  CudaKvCopier(const CudaKvCopier&) = delete;
  CudaKvCopier& operator=(const CudaKvCopier&) = delete;

  Status open() {
    const DeviceGuard guard(device_);
    RETURN_IF_ERROR(guard.status());
    RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
    ASSIGN_OR_RETURN(pinned_, PinnedBuffer::allocate(layers_.size() * 2 * half_));
    return {};
  }

  Status read(std::span<const int> layers, int32_t page, std::span<std::byte> bytes) override {
    RETURN_IF_ERROR(failed_);
    const DeviceGuard guard(device_);
    RETURN_IF_ERROR(copy(layers, page, [this](std::byte* host, std::byte* device) {
      return cudaMemcpyAsync(host, device, half_, cudaMemcpyDeviceToHost, stream_);
    }));
    std::memcpy(bytes.data(), pinned_.as<std::byte>(), bytes.size());
    return {};
  }

  Status write(std::span<const int> layers, int32_t page, std::span<const std::byte> bytes) override {
    RETURN_IF_ERROR(failed_);
    const DeviceGuard guard(device_);
    std::memcpy(pinned_.as<std::byte>(), bytes.data(), bytes.size());
    return copy(layers, page, [this](std::byte* host, std::byte* device) {
      return cudaMemcpyAsync(device, host, half_, cudaMemcpyHostToDevice, stream_);
    });
  }

 private:
  template <typename Copy>
  Status copy(std::span<const int> layers, int32_t page, const Copy& copy_half) {
    return failed_ = copy_layers(layers, page, copy_half);
  }
  // K, then V, of each layer.
  template <typename Copy>
  Status copy_layers(std::span<const int> layers, int32_t page, const Copy& copy_half) {
    std::byte* host = pinned_.as<std::byte>();
    for (const int layer : layers) {
      const Layer& l = layers_[static_cast<size_t>(layer)];
      for (const DeviceBuffer* buffer : {&l.k, &l.v}) {
        std::byte* const device = buffer->as<std::byte>() + static_cast<size_t>(page) * half_;
        RETURN_IF_ERROR(check(copy_half(host, device), "the KV cache"));
        host += half_;
      }
    }
    return wait_(stream_, "the KV cache");
  }

  int device_;
  std::span<const Layer> layers_;
  size_t half_;
  StepWait wait_;
  cudaStream_t stream_ = nullptr;
  PinnedBuffer pinned_;
  Status failed_;  // a copy that failed may still use pinned_
};

}  // namespace

std::unique_ptr<KvCopier> make_kv_copier(int device, std::span<const Layer> layers, size_t page_bytes,
                                         const StepWait& wait) {
  auto copier = std::make_unique<CudaKvCopier>(device, layers, page_bytes, wait);
  if (!copier->open().ok()) return nullptr;
  return copier;
}

}  // namespace moesaic::cuda
