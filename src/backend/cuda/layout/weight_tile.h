// The unit of all weight layouts but slabs. Plain constants, the same on host and device and under NVRTC.
#pragma once

namespace moesaic::cuda {

inline constexpr int kWeightTileRows = 32;  // rows
inline constexpr int kBlock = 32;           // columns

}  // namespace moesaic::cuda
