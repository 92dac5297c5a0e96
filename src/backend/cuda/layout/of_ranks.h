#pragma once

#include <algorithm>

#include "core/rank_share.h"

namespace moesaic::cuda {

// One address for each rank, of the same thing in the memory of its device.
template <typename T>
struct OfRanks {
  T* at[kMostRanks] = {};
};
// The same addresses as pointers to another type.
template <typename To, typename From>
OfRanks<To> cast(const OfRanks<From>& from) {
  OfRanks<To> to;
  std::ranges::transform(from.at, to.at, [](From* p) { return reinterpret_cast<To*>(p); });
  return to;
}

}  // namespace moesaic::cuda
