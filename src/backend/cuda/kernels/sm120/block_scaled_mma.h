// The block-scaled MMA as arithmetic on the host: what the instruction of block_scaled_mma.cuh computes from
// a warp's registers. The oracle for layouts and for the device's MMA.
#pragma once

#include <array>
#include <cstdint>

#include "backend/cuda/layout/quad_layout.h"

namespace moesaic::cuda::sm120 {

inline constexpr int kLanes = 32;

// A warp's registers of one step. Of m16n8k32 lane 4 g + c holds of A (16 x 32, E2M1 as 00SEEM00 or E4M3)
// rows g (registers 0, 2) and g + 8 (1, 3), k 4 c + {0..3} (0, 1) and 16 + 4 c + {0..3} (2, 3); of B (32 x 8,
// E4M3) column g and the same k; of D columns 2 c, 2 c + 1 of row g and then of row g + 8. scales_a: the word
// of row g stands in lane 4 g + 2 tile, that of row g + 8 in the next; scales_b: that of column g in lane 4 g
// + group. Byte `step` counts.
struct WarpOperands {
  std::array<std::array<uint32_t, 4>, kLanes> a{};
  std::array<std::array<uint32_t, 2>, kLanes> b{};
  std::array<uint32_t, kLanes> scales_a{}, scales_b{};
};
using WarpSums = std::array<std::array<float, 4>, kLanes>;

// d += A B, summed in double and rounded once.
void mma_on_host(Element a, const WarpOperands& in, int step, int tile, int group, WarpSums& d);

}  // namespace moesaic::cuda::sm120
