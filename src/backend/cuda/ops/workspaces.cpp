#include "backend/cuda/ops/workspaces.h"

#include <algorithm>
#include <span>

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

// A stream that work is launched on, or the graph that captures it.
struct Place {
  unsigned long long capture = 0, id = 0;  // the id of the stream where there is no capture
  cudaGraph_t graph = nullptr;
};
Result<Place> place_of(cudaStream_t stream) {
  Place p;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  RETURN_IF_ERROR(check(cudaStreamGetCaptureInfo(stream, &status, &p.capture, &p.graph), "moe"));
  if (status == cudaStreamCaptureStatusInvalidated) return check(cudaErrorStreamCaptureInvalidated, "moe");
  if (status != cudaStreamCaptureStatusNone) return p;
  p.graph = nullptr;
  RETURN_IF_ERROR(check(cudaStreamGetId(stream, &p.id), "moe"));  // would end a capture
  return p;
}

// Two rows: streams' and graphs'. They stay to the end of the process, since a kernel may give up late.
Result<std::span<int>> fault_words() {
  static std::mutex mutex;
  static auto* const page = new PinnedBuffer;
  const std::lock_guard lock(mutex);
  constexpr size_t kWords = 2 * Workspaces::kFaultWords;
  if (page->as<int>() == nullptr) {
    ASSIGN_OR_RETURN(*page, PinnedBuffer::allocate(kWords * sizeof(int)));
    std::fill_n(page->as<int>(), kWords, 0);
  }
  return std::span(page->as<int>(), kWords);
}

bool take_fault(int* word) {
  const std::atomic_ref<int> fault(*word);
  return fault.load(std::memory_order_relaxed) != 0 && fault.exchange(0) != 0;
}

}  // namespace

std::shared_ptr<Workspaces> Workspaces::shared() {
  static std::mutex mutex;
  static std::weak_ptr<Workspaces> kept;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Workspaces> all = kept.lock();
  if (all == nullptr) kept = all = std::make_shared<Workspaces>();
  return all;
}

Workspaces::Block::~Block() {
  const BesideCaptures beside;
  if (!device_is_lost()) {
    if (has_event_) cudaEventSynchronize(ended_);
    if (ended_ != nullptr) cudaEventDestroy(ended_);
  }
  memory = {};
}

Result<int*> Workspaces::fault_word(int device, cudaStream_t stream) {
  const BesideCaptures beside;
  ASSIGN_OR_RETURN(const Place place, place_of(stream));
  ASSIGN_OR_RETURN(const std::span<int> words, fault_words());
  // Ids count up; but each device's default stream has the same one.
  if (place.graph != nullptr) return &words[kFaultWords + place.capture % kFaultWords];
  return &words[(place.id + 61ULL * static_cast<unsigned>(device)) % kFaultWords];
}

Status Workspaces::check_fault(int* word) {
  bool gave_up = take_fault(word);
  ASSIGN_OR_RETURN(const std::span<int> words, fault_words());
  for (int& of_graph : words.subspan(kFaultWords)) gave_up |= take_fault(&of_graph);
  return gave_up ? error(StatusCode::kInternal, "moe: in an earlier call {}", kGaveUpMessage) : Status();
}

Result<std::shared_ptr<Workspaces::Block>> Workspaces::get(int device, cudaStream_t stream, size_t bytes) {
  const BesideCaptures beside;
  ASSIGN_OR_RETURN(const Place place, place_of(stream));
  if (place.graph != nullptr) return for_graph(device, {place.capture, stream}, place.graph, bytes);
  bool many = false;
  ASSIGN_OR_RETURN(std::shared_ptr<Block> block, for_stream(device, place.id, many));
  if (block->memory.bytes() < bytes) {
    if (block->memory.bytes() > 0) RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "moe"));
    block->memory = {};
    ASSIGN_OR_RETURN(block->memory, DeviceBuffer::allocate_unset(bytes, kWhat));
  }
  // An event keeps the next kernel from starting early. A stream that is alone needs none.
  if (!many) return block;
  Block* const of_call = block.get();
  return std::shared_ptr<Block>(of_call, [block = std::move(block), stream](Block* b) {
    if (b->ended_ == nullptr && cudaEventCreateWithFlags(&b->ended_, cudaEventDisableTiming) != cudaSuccess)
      return;
    b->has_event_ = cudaEventRecord(b->ended_, stream) == cudaSuccess;
  });
}

// many: the device has blocks of other streams, too.
Result<std::shared_ptr<Workspaces::Block>> Workspaces::for_stream(int device, unsigned long long stream,
                                                                  bool& many) {
  std::unique_lock lock(mutex_);
  auto at = blocks_.find({device, stream});
  if (at == blocks_.end()) {
    std::shared_ptr<Block> oldest = take_oldest(device);
    lock.unlock();
    oldest = nullptr;  // waits
    lock.lock();
    at = blocks_.emplace(std::pair(device, stream), std::make_shared<Block>()).first;
  }
  at->second->last_use_ = ++uses_;
  many = std::ranges::count(blocks_, device, [](const auto& entry) { return entry.first.first; }) > 1;
  return at->second;
}

// Takes the block that was used least recently where the device has as many as it keeps. Only blocks count
// whose last call is known to the device.
std::shared_ptr<Workspaces::Block> Workspaces::take_oldest(int device) {
  size_t streams = 0;
  auto oldest = blocks_.end();
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    if (at->first.first != device) continue;
    ++streams;
    if (at->second->has_event_ &&
        (oldest == blocks_.end() || at->second->last_use_ < oldest->second->last_use_))
      oldest = at;
  }
  if (streams < kMostStreams || oldest == blocks_.end()) return nullptr;
  return std::move(blocks_.extract(oldest).mapped());
}

Workspaces::Graphs& Workspaces::graphs() {
  static auto* const graphs = new Graphs;  // graphs may be destroyed while the program ends
  return *graphs;
}

Result<std::shared_ptr<Workspaces::Block>> Workspaces::for_graph(int device, CapturedStream key,
                                                                 cudaGraph_t graph, size_t bytes) {
  Graphs& all = graphs();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.of, [](const auto& entry) { return entry.second->unused.load(); });
  if (const auto had = all.of.find(key); had != all.of.end() && had->second->memory.bytes() >= bytes)
    return had->second;
  ASSIGN_OR_RETURN(std::shared_ptr<Block> block, take_unused(device, bytes));
  // CUDA calls this when the graph and its executables are gone, on a thread that must not call CUDA: nothing
  // is freed here.
  const cudaHostFn_t released = [](void* of_graph) { static_cast<Block*>(of_graph)->unused = true; };
  cudaUserObject_t object = nullptr;
  RETURN_IF_ERROR(
      check(cudaUserObjectCreate(&object, block.get(), released, 1, cudaUserObjectNoDestructorSync), "moe"));
  block->unused = false;
  const cudaError_t code = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (code != cudaSuccess) {
    cudaUserObjectRelease(object, 1);
    return check(code, "moe");
  }
  return all.of[key] = std::move(block);
}

// The smallest that is large enough. Where there is none, the others are freed before one is allocated.
Result<std::shared_ptr<Workspaces::Block>> Workspaces::take_unused(int device, size_t bytes) {
  Graphs& all = graphs();
  std::vector<std::shared_ptr<Block>>& blocks = all.blocks;
  std::shared_ptr<Block> best;
  for (const auto& b : blocks) {
    if (b->unused && b->device == device && b->memory.bytes() >= bytes &&
        (best == nullptr || b->memory.bytes() < best->memory.bytes()))
      best = b;
  }
  if (best != nullptr) return best;
  std::erase_if(blocks, [&](const auto& b) {
    const bool goes = b->device == device && b->unused;
    if (goes) std::erase_if(all.of, [&](const auto& entry) { return entry.second == b; });
    return goes;
  });
  auto made = std::make_shared<Block>();
  made->device = device;
  ASSIGN_OR_RETURN(made->memory, DeviceBuffer::allocate_unset(bytes, kWhat));
  return blocks.emplace_back(std::move(made));
}

}  // namespace moesaic::cuda
