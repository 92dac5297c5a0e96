#include "backend/cuda/ops/host_exchange.h"

#include <atomic>
#include <cstring>
#include <system_error>
#include <utility>

#include "backend/cuda/kernels/common/word_sender.h"
#include "base/error.h"

namespace moesaic::cuda {

double HostExchange::pinned_bytes(const ModelConfig& config, int max_rows) {
  return static_cast<double>(hand_over_bytes(max_rows, config.hidden, config.experts_per_token));
}

Status HostExchange::open(std::unique_ptr<HostExperts> experts, const ModelConfig& config, int layers,
                          int max_rows, int* fault) {
  close();
  if (layers > static_cast<int>(kStepEpochs))
    return error(StatusCode::kUnsupported, "cuda: experts of {} layers in host memory, at most {}", layers,
                 kStepEpochs);
  const size_t bytes = hand_over_bytes(max_rows, config.hidden, config.experts_per_token);
  ASSIGN_OR_RETURN(memory_, PinnedBuffer::allocate(bytes));
  ASSIGN_OR_RETURN(arrived_, DeviceBuffer::allocate(sizeof(int), "hand-overs"));
  std::memset(memory_.as<void>(), 0, bytes);
  const HandOver at =
      hand_over_in(memory_.as<std::byte>(), max_rows, config.hidden, config.experts_per_token);
  layer_ = {.at = at,
            .hidden = config.hidden,
            .top_k = config.experts_per_token,
            .arrived = arrived_.as<int>(),
            .fault = fault};
  experts_ = std::move(experts), layers_ = layers, steps_ = 0;
  use_ = std::make_unique<ExpertUse>(layers, config.experts);
  try {
    server_ = std::make_unique<HandOverServer>(at, *experts_, use_.get());
  } catch (const std::system_error& e) {
    return error(StatusCode::kOutOfMemory, "experts on the host: no thread to compute with them: {}",
                 e.code().message());
  }
  return {};
}

void HostExchange::close() {
  server_ = nullptr;
  experts_ = nullptr;
  memory_ = {}, arrived_ = {}, layers_ = 0;
}

int32_t HostExchange::begin_step(const int32_t* epoch) {
  if (layers_ == 0) return 0;
  layer_.epoch = epoch;
  const uint32_t first = ++steps_ * kStepEpochs;
  server_->expect(first + static_cast<uint32_t>(layers_) - 1);
  return static_cast<int32_t>(first);
}

Status HostExchange::run(int index, const HostRows& rows, const std::function<Status()>& meanwhile,
                         cudaStream_t stream) {
  HostLayer p = layer_;
  p.index = p.layer = index;
  p.rows = rows.rows, p.normed = rows.normed, p.ids = rows.ids, p.weights = rows.weights, p.x = rows.x;
  p.hot_slots = rows.hot_slots, p.hot_ids = rows.hot_ids;
  p.expert_out = rows.expert_out, p.permuted_rows = rows.permuted_rows;
  RETURN_IF_ERROR(hand_over(p, stream));
  if (meanwhile) RETURN_IF_ERROR(meanwhile());
  return take_back(p, stream);
}

uint32_t HostExchange::answered() const {
  if (layers_ == 0) return 0;
  return std::atomic_ref(layer_.at.words->answered).load(std::memory_order_relaxed);
}

Status HostExchange::forget() {
  if (layers_ == 0) return {};
  server_->forget();
  return server_->failure();
}

}  // namespace moesaic::cuda
