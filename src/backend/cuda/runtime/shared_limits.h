// Bytes of shared memory that a CTA may have, its static memory included: CUDA's programming guide,
// "Technical Specifications per Compute Capability". tools/check_sass.py has the limit of static memory.
#pragma once

#include <cstddef>

namespace moesaic::cuda {

inline constexpr size_t kHopperShared = 227 * 1024;   // 9.0, 10.x and 11.0
inline constexpr size_t kAmpereShared = 163 * 1024;   // 8.0 and 8.7
inline constexpr size_t kSmallestShared = 99 * 1024;  // 8.6, 8.9 and 12.x, so of every device

}  // namespace moesaic::cuda
