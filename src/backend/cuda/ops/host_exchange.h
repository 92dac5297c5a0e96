// The layers whose experts the host computes: their memory, the server's thread, and the hand-overs of a
// step.
#pragma once

#include <functional>
#include <memory>

#include "backend/cuda/kernels/common/hand_over.h"
#include "backend/hand_over.h"
#include "core/model_config.h"

namespace moesaic::cuda {

// The rows of a layer as its router left them.
struct HostRows {
  const float* normed = nullptr;   // [rows, hidden]
  const int32_t* ids = nullptr;    // [rows, top_k]
  const float* weights = nullptr;  // [rows, top_k]
  float* x = nullptr;              // [rows, hidden]
  int rows = 0;
  // Where experts are here as well: as HostLayer has it.
  const int32_t* hot_slots = nullptr;
  int32_t* hot_ids = nullptr;
  const float* expert_out = nullptr;
  const int32_t* permuted_rows = nullptr;
};

class HostExchange {
 public:
  // Bytes of page-locked memory for steps of so many rows.
  static double pinned_bytes(const ModelConfig& config, int max_rows);

  // experts: those of the model's last `layers` layers, in order. fault: where kernels leave kHostAway and
  // kHostFailed. No step may be in flight.
  Status open(std::unique_ptr<HostExperts> experts, const ModelConfig& config, int layers, int max_rows,
              int* fault);
  // Nothing may be in flight.
  void close();
  HostExperts* experts() const { return experts_.get(); }  // null: there are none

  // The epoch of the step's first hand-over, for the step's inputs, where `epoch` is. All of the step's will
  // come. 0: there are none.
  int32_t begin_step(const int32_t* epoch);
  // x += the experts' output of the index-th of these layers. meanwhile: launches those that are here.
  Status run(int index, const HostRows& rows, const std::function<Status()>& meanwhile, cudaStream_t stream);
  // The epoch of the last hand-over that the host has answered.
  uint32_t answered() const;
  ExpertUse& use() { return *use_; }  // while there are experts
  // Nothing is in flight any more, and what has not come does not come. Why it failed, if it did here.
  Status forget();

 private:
  std::unique_ptr<HostExperts> experts_;
  PinnedBuffer memory_;
  DeviceBuffer arrived_;
  HostLayer layer_;  // has what all hand-overs have in common
  int layers_ = 0;
  uint32_t steps_ = 0;
  std::unique_ptr<ExpertUse> use_;
  std::unique_ptr<HandOverServer> server_;
};

}  // namespace moesaic::cuda
