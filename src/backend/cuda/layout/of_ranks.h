#pragma once

#include "core/rank_share.h"

namespace moesaic::cuda {

// One address for each rank, of the same thing in the memory of its device.
template <typename T>
struct OfRanks {
  T* at[kMostRanks] = {};
};

}  // namespace moesaic::cuda
