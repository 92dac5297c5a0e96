// The rule of speculative decoding: drafted tokens are kept as long as they are those that the model samples.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace moesaic {

// The number of a draft's first tokens that are accepted. sampled: the model's tokens in their places, as far
// as they are known. A device that goes on by itself has the same rule
// (backend/cuda/kernels/common/draft.cuh).
inline int accepted_prefix(std::span<const int32_t> draft, std::span<const int32_t> sampled) {
  return static_cast<int>(std::ranges::mismatch(draft, sampled).in1 - draft.begin());
}

}  // namespace moesaic
