// For kernels that hand each float that they make to the other ranks at once (gather.h).
#pragma once

#include <cstdint>

#include "core/rank_share.h"

namespace moesaic::cuda {

// Most words of a matrix that are handed over one by one, each with its epoch.
inline constexpr int kInboxWords = 1 << 18;

struct WordSender {
  uint64_t* inbox[kMostRanks - 1] = {};  // of the other ranks
  int peers = 0;                         // 0: nobody gets anything
  const int32_t* epoch = nullptr;        // of the step's first exchange
  int index = 0;                         // of this one in its step
  int width = 0, first = 0;              // of the whole matrix's rows, and this rank's first column
};

}  // namespace moesaic::cuda
