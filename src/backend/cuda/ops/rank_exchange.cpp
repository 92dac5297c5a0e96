#include "backend/cuda/ops/rank_exchange.h"

#include <map>
#include <mutex>

#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr uint32_t kMostSteps = (1u << 31) / kStepEpochs - 1;
static_assert(kMostRankLayers * 4 + 1 < static_cast<int>(kStepEpochs));

// The last step of ranks on each device, of whatever model. ParallelBackend launches one step after the
// other, so all devices have them in the same order.
struct LastStep {
  std::mutex mutex;
  const RankExchange* of = nullptr;
  cudaEvent_t ended = nullptr;
};
LastStep& last_step(int device) {
  static std::map<int, LastStep> all;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  return all[device];
}

}  // namespace

Result<std::vector<uint64_t>> RankExchange::words_of_ranks(uint64_t mine) {
  std::vector<uint64_t> words = place_.exchange->share(place_.share.rank, mine);
  if (words.empty()) return place_.exchange->failure();
  return words;
}

Status RankExchange::open(const RankPlace& place, int device, int* fault) {
  place_ = place, device_ = device;
  if (alone()) return {};
  RETURN_IF_ERROR(map_peers(device));
  constexpr size_t kInboxBytes = sizeof(uint64_t) * kInboxQuarters * kInboxWords;
  ASSIGN_OR_RETURN(inbox_, DeviceBuffer::allocate(kInboxBytes, "the exchange"));
  ASSIGN_OR_RETURN(arrived_,
                   DeviceBuffer::allocate(kMostRanks * kGatherCtas * sizeof(uint32_t), "the exchange"));
  RETURN_IF_ERROR(check(cudaDeviceSynchronize(), "the exchange"));
  links_ = {.rank = share().rank, .ranks = share().ranks, .fault = fault};
  steps_ = 0;
  ASSIGN_OR_RETURN(links_.inbox, of_ranks(inbox_.as<uint64_t>()));
  ASSIGN_OR_RETURN(links_.arrived, of_ranks(arrived_.as<uint32_t>()));
  return {};
}

// Kernels are chosen by what a device has: ranks of different kinds would launch different exchanges.
Status RankExchange::map_peers(int device) {
  cudaDeviceProp own{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&own, device), "ranks"));
  const auto kind = static_cast<uint64_t>(own.major * 1000 + own.minor * 10) << 32 |
                    static_cast<uint64_t>(own.multiProcessorCount);
  ASSIGN_OR_RETURN(const std::vector<uint64_t> kinds, words_of_ranks(kind));
  if (std::ranges::any_of(kinds, [&](uint64_t other) { return other != kind; }))
    return error(StatusCode::kUnsupported,
                 "--tp: the GPUs are of different kinds; name alike ones by --device");
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
  {
    LastStep& last = last_step(device_);
    const std::scoped_lock lock(last.mutex);
    if (last.ended != nullptr && last.of != this)
      RETURN_IF_ERROR(check(cudaStreamWaitEvent(stream, last.ended), "ranks"));
  }
  if (++steps_ > kMostSteps) {
    RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "the exchange"));
    RETURN_IF_ERROR(meet());
    RETURN_IF_ERROR(check(cudaMemset(inbox_.as<void>(), 0, inbox_.bytes()), "the exchange"));
    RETURN_IF_ERROR(check(cudaMemset(arrived_.as<void>(), 0, arrived_.bytes()), "the exchange"));
    RETURN_IF_ERROR(check(cudaDeviceSynchronize(), "the exchange"));
    RETURN_IF_ERROR(meet());
    steps_ = 1;
  }
  return static_cast<int32_t>(steps_ * kStepEpochs);
}

Status RankExchange::end_step(cudaStream_t stream) {
  if (alone()) return {};
  LastStep& last = last_step(device_);
  const std::scoped_lock lock(last.mutex);
  if (last.ended == nullptr)
    RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&last.ended, cudaEventDisableTiming), "ranks"));
  last.of = this;
  return check(cudaEventRecord(last.ended, stream), "ranks");
}

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
