#include "backend/cuda/ops/workspaces.h"

#include <algorithm>

#include "backend/cuda/kernels/common/gave_up.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr const char* kWhat = "the experts' workspace";

// Memory is allocated and freed while a stream of this or another thread may be captured. The capture must
// neither contain these calls nor end because of them.
class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

std::shared_ptr<Workspaces> Workspaces::shared() {
  static std::mutex mutex;
  static std::weak_ptr<Workspaces> kept;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Workspaces> all = kept.lock();
  if (all == nullptr) kept = all = std::make_shared<Workspaces>();
  return all;
}

Status Workspaces::open() {
  const BesideCaptures beside;
  const std::lock_guard lock(mutex_);
  if (fault_.bytes() > 0) return {};
  ASSIGN_OR_RETURN(fault_, PinnedBuffer::allocate(sizeof(int)));
  *fault_.as<int>() = 0;
  return {};
}

Status Workspaces::check_fault() {
  const std::atomic_ref<int> fault(*fault_.as<int>());
  if (fault.load(std::memory_order_relaxed) == 0 || fault.exchange(0) == 0) return {};
  return error(StatusCode::kInternal, "moe: in an earlier call {}", kGaveUpMessage);
}

Result<void*> Workspaces::get(int device, cudaStream_t stream, size_t bytes) {
  const BesideCaptures beside;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0, id = 0;
  cudaGraph_t graph = nullptr;
  RETURN_IF_ERROR(check(cudaStreamGetCaptureInfo(stream, &status, &capture, &graph), "moe"));
  if (status != cudaStreamCaptureStatusNone) return for_graph(device, {capture, stream}, graph, bytes);
  RETURN_IF_ERROR(check(cudaStreamGetId(stream, &id), "moe"));  // would end a capture

  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = blocks_.try_emplace({device, id});
  Block& block = at->second;
  block.device = device, block.last_use = ++uses_;
  if (fresh) drop_oldest(device);
  if (block.memory.bytes() >= bytes) return block.memory.as<void>();
  if (block.memory.bytes() > 0) RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "moe"));
  block.memory = {};
  ASSIGN_OR_RETURN(block.memory, DeviceBuffer::allocate_unset(bytes, kWhat));
  return block.memory.as<void>();
}

void Workspaces::drop_oldest(int device) {
  size_t streams = 0;
  auto oldest = blocks_.end();
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    if (at->first.first != device) continue;
    ++streams;
    if (oldest == blocks_.end() || at->second.last_use < oldest->second.last_use) oldest = at;
  }
  if (streams <= kMostStreams) return;
  // If the device cannot be waited for, the block is kept, and the next stream tries again.
  if (cudaDeviceSynchronize() == cudaSuccess) blocks_.erase(oldest);
  cudaGetLastError();
}

Workspaces::Graphs& Workspaces::graphs() {
  static auto* const graphs = new Graphs;  // graphs may be destroyed while the program ends
  return *graphs;
}

Result<void*> Workspaces::for_graph(int device, CapturedStream key, cudaGraph_t graph, size_t bytes) {
  Graphs& all = graphs();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.of, [](const auto& entry) { return entry.second->unused.load(); });
  if (const auto had = all.of.find(key); had != all.of.end() && had->second->memory.bytes() >= bytes)
    return had->second->memory.as<void>();
  ASSIGN_OR_RETURN(Block* const block, take_unused(device, bytes));
  // CUDA calls this when the graph and its executables are gone, on a thread that must not call CUDA: nothing
  // is freed here.
  const cudaHostFn_t released = [](void* of_graph) { static_cast<Block*>(of_graph)->unused = true; };
  cudaUserObject_t object = nullptr;
  RETURN_IF_ERROR(
      check(cudaUserObjectCreate(&object, block, released, 1, cudaUserObjectNoDestructorSync), "moe"));
  block->unused = false;
  const cudaError_t code = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (code != cudaSuccess) {
    cudaUserObjectRelease(object, 1);
    return check(code, "moe");
  }
  all.of[key] = block;
  return block->memory.as<void>();
}

// The smallest that is large enough. Where there is none, the others are freed before one is allocated.
Result<Workspaces::Block*> Workspaces::take_unused(int device, size_t bytes) {
  Graphs& all = graphs();
  std::vector<std::unique_ptr<Block>>& blocks = all.blocks;
  Block* best = nullptr;
  for (const auto& b : blocks) {
    if (b->unused && b->device == device && b->memory.bytes() >= bytes &&
        (best == nullptr || b->memory.bytes() < best->memory.bytes()))
      best = b.get();
  }
  if (best != nullptr) return best;
  std::erase_if(blocks, [&](const auto& b) {
    const bool goes = b->device == device && b->unused;
    if (goes) std::erase_if(all.of, [&](const auto& entry) { return entry.second == b.get(); });
    return goes;
  });
  auto made = std::make_unique<Block>();
  made->device = device;
  ASSIGN_OR_RETURN(made->memory, DeviceBuffer::allocate_unset(bytes, kWhat));
  return blocks.emplace_back(std::move(made)).get();
}

}  // namespace moesaic::cuda
