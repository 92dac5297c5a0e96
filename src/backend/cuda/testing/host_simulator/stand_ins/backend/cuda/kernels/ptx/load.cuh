// load.cuh on the host.
#pragma once

#include <cstdint>

namespace moesaic::cuda {

inline uint4 load_weights(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }

}  // namespace moesaic::cuda
