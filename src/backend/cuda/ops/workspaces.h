// Scratch memory of the operators whose callers bring none, and words for faults.
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
// Thread-safety: any thread; a stream's calls are those of one thread at a time.
class Workspaces {
 public:
  struct Block {
    ~Block();
    int device = 0;
    DeviceBuffer memory;
    std::atomic<bool> unused = true;  // by any graph

   private:
    friend class Workspaces;
    uint64_t last_use_ = 0;
    cudaEvent_t ended_ = nullptr;          // behind the stream's last call
    std::atomic<bool> has_event_ = false;  // it was recorded
  };

  static constexpr size_t kMostStreams = 16;  // streams of a device that keep their block
  static constexpr size_t kFaultWords = 512;  // streams have so many, and graphs as many

  // All living operators share one.
  static std::shared_ptr<Workspaces> shared();

  // Gives at least so many bytes, above 0, for what is now launched on the stream, or captured from it: keep
  // the pointer until then. Memory of the stream that is too small is replaced, for which its work is waited
  // for; beyond kMostStreams the block that was used least recently goes, behind its last call. Neither
  // happens while the stream is captured. The current device is `device`.
  Result<std::shared_ptr<Block>> get(int device, cudaStream_t stream, size_t bytes);

  // The word in host memory in which the kernels now launched on the stream, or captured from it, leave
  // kGaveUp (gave_up.h). A stream and a graph have one of their own, so that a fault is told to the next call
  // of that stream, and ends no wait of others' kernels. Their ids are counted modulo kFaultWords, so two may
  // have the same one. Never waits. The process's first call allocates.
  static Result<int*> fault_word(int device, cudaStream_t stream);
  // An error once, if a kernel has given up with this word, or in a graph, since the last call.
  static Status check_fault(int* word);

 private:
  // A capture's id and one of its streams.
  using CapturedStream = std::pair<unsigned long long, cudaStream_t>;
  // Blocks that graphs have outlive the operators that captured them, and so the Workspaces.
  struct Graphs {
    std::mutex mutex;
    std::vector<std::shared_ptr<Block>> blocks;
    std::map<CapturedStream, std::shared_ptr<Block>> of;
  };
  static Graphs& graphs();
  static Result<std::shared_ptr<Block>> for_graph(int device, CapturedStream key, cudaGraph_t graph,
                                                  size_t bytes);
  static Result<std::shared_ptr<Block>> take_unused(int device, size_t bytes);
  Result<std::shared_ptr<Block>> for_stream(int device, unsigned long long stream, bool& many);
  std::shared_ptr<Block> take_oldest(int device);

  std::mutex mutex_;
  uint64_t uses_ = 0;
  std::map<std::pair<int, unsigned long long>, std::shared_ptr<Block>> blocks_;
};

}  // namespace moesaic::cuda
