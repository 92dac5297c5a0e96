// The device's side of hot experts (backend/hot_experts.h): their weights, who is where, and the exchanges
// between steps.
//
// An exchange has three parts, none of which anybody waits for. Before a step the table loses the expert that
// leaves; behind all steps before that one its place is filled by the streams of ExpertStream; and before the
// first step that begins after that is done, the table gets the one that comes. A step sees one table.
#pragma once

#include <optional>

#include "backend/cuda/ops/expert_stream.h"
#include "backend/hot_experts.h"

namespace moesaic::cuda {

class HotSlots {
 public:
  HotSlots() = default;
  ~HotSlots() { close(); }
  HotSlots(const HotSlots&) = delete;
  HotSlots& operator=(const HotSlots&) = delete;

  // model: with LoadedModel::hot. Fills the places by `use`. All but that outlive this.
  Status open(const LoadedModel& model, ExpertStream& experts, const ExpertUse& use, int max_rows,
              cudaStream_t stream);
  void close();
  bool there() const { return hot_.has_value(); }

  // Before a step's kernels: ends an exchange that is done, and begins one now and then.
  Status step(ExpertUse& use);
  // The index-th host layer: [experts] each one's place among the layer's hot experts, or -1.
  const int32_t* slots(int index) const;
  int32_t* ids() const { return ids_.as<int32_t>(); }  // [max_rows, top_k]: a step's places
  int64_t exchanges() const { return exchanges_; }

 private:
  Status put(const HotExperts::Exchange& e, int expert, int slot);
  Status end_exchange();
  Status begin_exchange(const HotExperts::Exchange& e);

  const LoadedModel* model_ = nullptr;
  ExpertStream* experts_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::optional<HotExperts> hot_;
  std::optional<HotExperts::Exchange> under_way_;
  DeviceBuffer table_, numbers_, ids_;  // table_: [layers, experts]; numbers_: 0, 1, .. for its new entries
  cudaEvent_t left_ = nullptr, there_ = nullptr;
  int steps_ = 0;
  int64_t exchanges_ = 0;
};

}  // namespace moesaic::cuda
