#include "backend/cuda/ops/rank_exchange.h"

#include <mutex>
#include <vector>

#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr uint32_t kMostSteps = (1u << 31) / kStepEpochs - 1;
static_assert(kMostRankLayers * 4 + 1 < static_cast<int>(kStepEpochs));

// The last steps of all ranks of this process. ParallelBackend launches one step after the other, so all
// devices have them in the same order.
struct LastSteps {
  std::mutex mutex;
  std::vector<const LastStep*> all;
};
// The list is never destroyed: a global model may be destroyed after it.
LastSteps& last_steps() {
  static auto* const steps = new LastSteps;
  return *steps;
}

}  // namespace

LastStep::~LastStep() {
  LastSteps& steps = last_steps();
  const std::scoped_lock lock(steps.mutex);
  if (std::erase(steps.all, this) > 0 && !device_is_lost()) cudaEventDestroy(ended_);
}

Status LastStep::open(int device, const void* model) {
  LastSteps& steps = last_steps();
  const std::scoped_lock lock(steps.mutex);
  device_ = device, model_ = model;
  if (std::ranges::find(steps.all, this) != steps.all.end()) return {};
  RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming), "ranks"));
  steps.all.push_back(this);
  return {};
}

Status LastStep::wait_for_others(cudaStream_t stream) const {
  LastSteps& steps = last_steps();
  const std::scoped_lock lock(steps.mutex);
  for (const LastStep* const other : steps.all) {
    if (other->device_ == device_ && other->model_ != model_)
      RETURN_IF_ERROR(check(cudaStreamWaitEvent(stream, other->ended_), "ranks"));
  }
  return {};
}

Status LastStep::ends(cudaStream_t stream) const {
  const std::scoped_lock lock(last_steps().mutex);
  return check(cudaEventRecord(ended_, stream), "ranks");
}

Result<std::vector<uint64_t>> RankExchange::words_of_ranks(uint64_t mine) {
  std::vector<uint64_t> words = place_.exchange->share(place_.share.rank, mine);
  if (words.empty()) return place_.exchange->failure();
  return words;
}

Status RankExchange::open(const RankPlace& place, int device, const GpuPart& part, int* fault) {
  place_ = place;
  if (alone()) return {};
  RETURN_IF_ERROR(last_.open(device, place_.exchange.get()));
  RETURN_IF_ERROR(map_peers(device, part.multiprocessors()));
  constexpr size_t kInboxBytes = sizeof(uint64_t) * kInboxQuarters * kInboxWords;
  ASSIGN_OR_RETURN(inbox_, DeviceBuffer::allocate(kInboxBytes, "the exchange"));
  ASSIGN_OR_RETURN(arrived_,
                   DeviceBuffer::allocate(kMostRanks * kGatherCtas * sizeof(uint32_t), "the exchange"));
  links_ = {.rank = share().rank, .ranks = share().ranks, .fault = fault};
  steps_ = 0;
  ASSIGN_OR_RETURN(links_.inbox, of_ranks(inbox_.as<uint64_t>()));
  ASSIGN_OR_RETURN(links_.arrived, of_ranks(arrived_.as<uint32_t>()));
  return {};
}

// Kernels are chosen by what a device has: ranks of different kinds would launch different exchanges.
Status RankExchange::map_peers(int device, int multiprocessors) {
  cudaDeviceProp own{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&own, device), "ranks"));
  const auto kind =
      static_cast<uint64_t>(own.major * 1000 + own.minor * 10) << 32 | static_cast<uint64_t>(multiprocessors);
  ASSIGN_OR_RETURN(const std::vector<uint64_t> kinds, words_of_ranks(kind));
  if (std::ranges::any_of(kinds, [&](uint64_t other) { return other != kind; }))
    return error(StatusCode::kUnsupported,
                 "--tp: the GPUs are of different kinds, or more ranks share one than another; name alike "
                 "ones by --device");
  ASSIGN_OR_RETURN(const std::vector<uint64_t> devices, words_of_ranks(static_cast<uint64_t>(device)));
  for (const uint64_t word : devices) {
    const int peer = static_cast<int>(word);
    if (peer == device) continue;
    int reaches = 0;
    RETURN_IF_ERROR(check(cudaDeviceCanAccessPeer(&reaches, device, peer), "ranks"));
    if (reaches == 0)
      return error(StatusCode::kUnsupported,
                   "--tp: cuda:{} does not reach the memory of cuda:{} (nvidia-smi topo -p2p n shows which "
                   "devices do); choose others by --device, or use --tp 1",
                   device, peer);
    const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      RETURN_IF_ERROR(check(code, "ranks"));
    }
  }
  return meet();
}

// Epochs have 32 bits. Before they are used up all ranks forget what was exchanged.
Result<int32_t> RankExchange::begin_step(const int32_t* epoch, cudaStream_t stream) {
  index_ = 0, links_.epoch = epoch;
  if (alone()) return 0;
  RETURN_IF_ERROR(last_.wait_for_others(stream));
  if (++steps_ > kMostSteps) {
    RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "the exchange"));
    RETURN_IF_ERROR(meet());
    for (const DeviceBuffer* const each : {&inbox_, &arrived_})
      RETURN_IF_ERROR(check(cudaMemsetAsync(each->as<void>(), 0, each->bytes(), stream), "the exchange"));
    RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "the exchange"));
    RETURN_IF_ERROR(meet());
    steps_ = 1;
  }
  return static_cast<int32_t>(steps_ * kStepEpochs);
}

Status RankExchange::end_step(cudaStream_t stream) { return alone() ? Status() : last_.ends(stream); }

Status RankExchange::gather(Gather p, cudaStream_t stream) {
  p.index = index_++;
  return cuda::gather(links_, p, stream);
}

Status RankExchange::await_stores(cudaStream_t stream) {
  return cuda::await_stores(links_, index_++, stream);
}

WordSender RankExchange::sender(int width) {
  WordSender s{.epoch = links_.epoch,
               .index = index_,
               .width = width,
               .first = static_cast<int>(share().rows(width).first)};
  for (int rank = 0; rank < share().ranks; ++rank)
    if (rank != share().rank) s.inbox[s.peers++] = links_.inbox.at[rank];
  return s;
}

Status RankExchange::receive(float* x, int rows, int width, cudaStream_t stream) {
  return cuda::receive(links_,
                       {.index = index_++,
                        .x = x,
                        .width = width,
                        .rows = rows,
                        .columns = columns(1, [&](const RankShare& s) { return s.rows(width); })},
                       stream);
}

Status RankExchange::gather_floats(const OfRanks<float>& x, int rows, int width,
                                   const DeferredResidual& deferred, cudaStream_t stream) {
  if (alone()) return {};
  Gather p{.part_stride = width,
           .whole = cast<uint32_t>(x),
           .width = width,
           .rows = rows,
           .columns = columns(1, [&](const RankShare& s) { return s.rows(width); }),
           .deferred = deferred};
  p.part = p.whole.at[share().rank] + p.columns.first[share().rank];
  return gather(p, stream);
}

}  // namespace moesaic::cuda
