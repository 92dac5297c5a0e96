// Scratch memory of the operators whose callers bring none.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cuda/runtime/device.h"
#include "base/error.h"

namespace moesaic::cuda {

// For each device and stream one, which all operators share. Captured
// graphs go on using a block that has become too small, so it is kept.
class Workspaces {
 public:
  // Of all operators that live.
  static std::shared_ptr<Workspaces> shared() {
    static std::mutex mutex;
    static std::weak_ptr<Workspaces> kept;
    const std::lock_guard lock(mutex);
    std::shared_ptr<Workspaces> all = kept.lock();
    if (all == nullptr) kept = all = std::make_shared<Workspaces>();
    return all;
  }
  Result<void*> get(int device, cudaStream_t stream, size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<DeviceBuffer>& blocks = blocks_[{device, stream}];
    if (!blocks.empty() && blocks.back().bytes() >= bytes) return blocks.back().as<void>();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    RETURN_IF_ERROR(check(cudaStreamIsCapturing(stream, &status), "moe"));
    if (status != cudaStreamCaptureStatusNone)
      return invalid(
          "moe: the stream is being captured, and its workspace is too small: call once with as many tokens "
          "before, or give a workspace");
    ASSIGN_OR_RETURN(DeviceBuffer block, DeviceBuffer::allocate(bytes, "the experts' workspace"));
    return blocks.emplace_back(std::move(block)).as<void>();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, cudaStream_t>, std::vector<DeviceBuffer>> blocks_;
};

}  // namespace moesaic::cuda
