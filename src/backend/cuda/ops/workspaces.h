// Scratch memory of the operators whose callers bring none.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// All operators share one block for each device and stream. Captured work has one block for each capture and
// stream. That block belongs to the graph: nothing else uses it until the graph and all its executables are
// gone. Two replays at a time share a block only if they are of two executables made of one graph (CUDA runs
// those of one executable one after the other).
//
// Streams are told apart by their ids: handles are used again, and every thread's cudaStreamPerThread has the
// same one. In a capture, whose streams live as long as it, by their handles.
//
// Thread-safety: any thread.
class Workspaces {
 public:
  static constexpr size_t kMostStreams = 16;  // streams of a device that keep their block

  // All living operators share one.
  static std::shared_ptr<Workspaces> shared();

  // Allocates the fault word in host memory. Call it before the others.
  Status open();
  // Gives at least so many bytes for what is now launched on the stream, or captured from it. A block of the
  // stream that is too small is replaced, for which its work is waited for; beyond kMostStreams that which
  // was used least recently goes, for which the device is waited for. Neither happens while the stream is
  // captured.
  Result<void*> get(int device, cudaStream_t stream, size_t bytes);

  // An int that the device sees, where kernels leave kGaveUp (gave_up.h).
  int* fault() const { return fault_.as<int>(); }
  // An error once, if a kernel has given up since the last call.
  Status check_fault();

 private:
  struct Block {
    int device = 0;
    DeviceBuffer memory;
    std::atomic<bool> unused = true;  // by any graph
    uint64_t last_use = 0;
  };
  // A capture's id and one of its streams.
  using CapturedStream = std::pair<unsigned long long, cudaStream_t>;
  // Blocks that graphs have outlive the operators that captured them, and so the Workspaces.
  struct Graphs {
    std::mutex mutex;
    std::vector<std::unique_ptr<Block>> blocks;
    std::map<CapturedStream, Block*> of;
  };
  static Graphs& graphs();
  static Result<void*> for_graph(int device, CapturedStream key, cudaGraph_t graph, size_t bytes);
  static Result<Block*> take_unused(int device, size_t bytes);
  void drop_oldest(int device);

  std::mutex mutex_;
  uint64_t uses_ = 0;
  std::map<std::pair<int, unsigned long long>, Block> blocks_;
  PinnedBuffer fault_;
};

}  // namespace moesaic::cuda
