// For kernels that hand each float that they make to the other ranks at once (gather.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/rank_share.h"

namespace moesaic::cuda {

// Most words of a matrix that are handed over one by one, each with its epoch.
inline constexpr int kInboxWords = 1 << 18;
// An exchange's epoch: kStepEpochs for each step, and its index in the step.
inline constexpr uint32_t kStepEpochs = 1024;
// The inbox has a quarter for each of even and odd exchanges of even and odd steps.
inline constexpr int kInboxQuarters = 4;
__host__ __device__ constexpr int inbox_slot(uint32_t epoch, int place) {
  return static_cast<int>(epoch / kStepEpochs % 2 * 2 + epoch % 2) * kInboxWords + place;
}

struct WordSender {
  uint64_t* inbox[kMostRanks - 1] = {};  // the other ranks'
  int peers = 0;                         // 0: nobody gets anything
  const int32_t* epoch = nullptr;        // the epoch of the step's first exchange
  int index = 0;                         // number of this exchange in its step
  int width = 0, first = 0;              // rows of the whole matrix; this rank's first column
};

}  // namespace moesaic::cuda
