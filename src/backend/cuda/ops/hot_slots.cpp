#include "backend/cuda/ops/hot_slots.h"

#include <numeric>
#include <vector>

#include "base/error.h"

namespace moesaic::cuda {
namespace {

// At most one expert in so many steps: 13 MB of gpt-oss take the host's memory from the CPU for 0.2 ms, where
// a step of the 20b with 15 such layers takes 9.
constexpr int kStepsApart = 2;

}  // namespace

Status HotSlots::open(const LoadedModel& model, ExpertStream& experts, const ExpertUse& use, int max_rows,
                      cudaStream_t stream) {
  close();
  const int layers = static_cast<int>(std::ssize(model.hot)), all = model.config.experts;
  model_ = &model, experts_ = &experts, stream_ = stream;
  hot_.emplace(use, model.hot_experts);
  std::vector<int32_t> table, numbers(static_cast<size_t>(model.hot_experts));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (int layer = 0; layer < layers; ++layer) {
    for (int expert = 0; expert < all; ++expert) table.push_back(hot_->slot_of(layer, expert));
  }
  const auto allocate = [](DeviceBuffer& to, size_t count) -> Status {
    ASSIGN_OR_RETURN(to, DeviceBuffer::allocate(count * sizeof(int32_t), "hot experts"));
    return {};
  };
  RETURN_IF_ERROR(allocate(table_, table.size()));
  RETURN_IF_ERROR(allocate(numbers_, numbers.size()));
  RETURN_IF_ERROR(
      allocate(ids_, static_cast<size_t>(max_rows) * static_cast<size_t>(model.config.experts_per_token)));
  RETURN_IF_ERROR(copy_to_device(table_.as<void>(), table.data(), table_.bytes(), "moe"));
  RETURN_IF_ERROR(copy_to_device(numbers_.as<void>(), numbers.data(), numbers_.bytes(), "moe"));
  for (cudaEvent_t* event : {&left_, &there_})
    RETURN_IF_ERROR(check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event"));
  for (int layer = 0; layer < layers; ++layer) {
    for (int slot = 0; slot < model.hot_experts; ++slot)
      RETURN_IF_ERROR(experts_->bring_expert(layer, hot_->expert_in(layer, slot),
                                             model.hot[static_cast<size_t>(layer)], slot, there_));
  }
  return check(cudaEventSynchronize(there_), "moe");
}

void HotSlots::close() {
  if (!device_is_lost()) {
    if (under_way_) cudaEventSynchronize(there_);
    for (const cudaEvent_t event : {left_, there_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  hot_.reset(), under_way_.reset();
  left_ = there_ = nullptr, steps_ = 0, exchanges_ = 0;
  table_ = {}, numbers_ = {}, ids_ = {};
}

const int32_t* HotSlots::slots(int index) const {
  return table_.as<int32_t>() + int64_t{index} * model_->config.experts;
}

Status HotSlots::step(ExpertUse& use) {
  if (under_way_) {
    const cudaError_t done = cudaEventQuery(there_);
    if (done == cudaErrorNotReady) return cudaGetLastError(), Status();
    RETURN_IF_ERROR(check(done, "moe"));
    RETURN_IF_ERROR(end_exchange());
  }
  if (++steps_ % kStepsApart != 0) return {};
  // Counts of some 32 choices of each expert.
  const auto enough = static_cast<uint32_t>(std::ssize(model_->hot) * model_->config.experts * 32);
  if (use.counted() >= enough) use.age();
  const std::optional<HotExperts::Exchange> e = hot_->choose(use);
  return e ? begin_exchange(*e) : Status();
}

// slot: -1, or the expert's new one.
Status HotSlots::put(const HotExperts::Exchange& e, int expert, int slot) {
  int32_t* const at = table_.as<int32_t>() + int64_t{e.layer} * model_->config.experts + expert;
  if (slot < 0) return check(cudaMemsetAsync(at, 0xFF, sizeof(int32_t), stream_), "moe");
  return check(
      cudaMemcpyAsync(at, numbers_.as<int32_t>() + slot, sizeof(int32_t), cudaMemcpyDeviceToDevice, stream_),
      "moe");
}

// After an error no expert has the place, as only a part of the one that was to come may be there.
Status HotSlots::begin_exchange(const HotExperts::Exchange& e) {
  hot_->leave(e);
  RETURN_IF_ERROR(put(e, e.leaves, -1));
  RETURN_IF_ERROR(check(cudaEventRecord(left_, stream_), "moe"));
  RETURN_IF_ERROR(experts_->wait_before_bringing(left_));
  RETURN_IF_ERROR(
      experts_->bring_expert(e.layer, e.comes, model_->hot[static_cast<size_t>(e.layer)], e.slot, there_));
  under_way_ = e;
  return {};
}

Status HotSlots::end_exchange() {
  const HotExperts::Exchange e = *under_way_;
  under_way_.reset();
  hot_->enter(e);
  ++exchanges_;
  return put(e, e.comes, e.slot);
}

}  // namespace moesaic::cuda
