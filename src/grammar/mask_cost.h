// For tests: masks made slice by slice, with what each cost, so that bounds are on counted work and not on
// time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "grammar/matcher.h"

namespace moesaic::grammar {

struct MaskCost {
  uint64_t slice = 0, token = 0;  // work, the most of one
  size_t bytes = 0;               // kept by the grammar's masks, at most

  // A slice may end in one step that costs the most, and in what it was about to number. Each string that a
  // token is, a byte or two for a special one's ends, is followed before its mask is made.
  bool within_bounds() const {
    return slice <= kSliceWork + 2 * Machine::kMaxStep &&
           token <= 2 * TokenMasks::kMaskWork + TokenMasks::kMostWork + 64 * Machine::kMaxStep &&
           bytes <= TokenMasks::kMostBytes + (size_t{2} << 20);
  }
};

inline Result<std::span<const uint64_t>> next_mask(Matcher& matcher, MaskCost& cost) {
  uint64_t token = 0;
  while (true) {
    const TokenMasks* before = matcher.masks();
    const uint64_t start = before == nullptr ? 0 : before->work();
    const auto mask = matcher.allowed(Effort::kSlice);
    const uint64_t slice = matcher.masks()->work() - (matcher.masks() == before ? start : 0);
    cost.slice = std::max(cost.slice, slice);
    cost.token = std::max(cost.token, token += slice);
    cost.bytes = std::max(cost.bytes, matcher.masks()->bytes());
    if (mask) return *mask;
  }
}

}  // namespace moesaic::grammar
