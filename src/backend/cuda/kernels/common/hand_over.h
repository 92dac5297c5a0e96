// A layer's rows go to the host's experts in the middle of a step, and the outputs come back
// (backend/hand_over.h).
#pragma once

#include "backend/cuda/runtime/device.h"
#include "backend/hand_over.h"

namespace moesaic::cuda {

// The index-th hand-over of a step. Both kernels get the same.
struct HostLayer {
  HandOver at;                     // memory of the host that the device reaches
  const int32_t* epoch = nullptr;  // the epoch of the step's first hand-over
  int index = 0;
  int layer = 0;  // as the host's experts know it
  int rows = 0, hidden = 0, top_k = 0;
  const float* normed = nullptr;   // [rows, hidden]
  const int32_t* ids = nullptr;    // [rows, top_k]
  const float* weights = nullptr;  // [rows, top_k]
  float* x = nullptr;              // [rows, hidden]
  // These are null unless the device computes some experts meanwhile (backend/hot_experts.h). hot_slots has
  // each expert's place there, or -1: [experts]. hot_ids becomes the places of the rows' choices: [rows,
  // top_k]. The outputs stand in expert_out [permuted rows, hidden], each choice's in the row that
  // permuted_rows names.
  const int32_t* hot_slots = nullptr;
  int32_t* hot_ids = nullptr;
  const float* expert_out = nullptr;
  const int32_t* permuted_rows = nullptr;
  int* arrived = nullptr;  // 0 between kernels
  int* fault = nullptr;    // becomes kHostAway or kHostFailed (gave_up.h)
};
// A step that has a fault already hands no rows over.
Status hand_over(const HostLayer& p, cudaStream_t stream);
// x += the outputs, and those of the experts here in the order of top_k. Between the two only those experts'
// kernels may be launched.
Status take_back(const HostLayer& p, cudaStream_t stream);

}  // namespace moesaic::cuda
