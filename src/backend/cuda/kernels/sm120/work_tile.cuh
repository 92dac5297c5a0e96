// Which permuted rows a CTA works on.
#pragma once

#include "backend/cuda/kernels/sm120/operands.h"

namespace moesaic::cuda::sm120 {

// The work tile of blockIdx.y; none: count is 0.
__device__ inline WorkTile work_tile_of(const Tokens& x) {
  if (x.work_tiles == nullptr) {
    const int first = static_cast<int>(blockIdx.y) * x.tile;
    return {0, first, min(x.tile, x.count - first), first};
  }
  if (static_cast<int>(blockIdx.y) >= __ldcg(x.work_tile_count)) return {};
  const int4 work_tile = __ldcg(reinterpret_cast<const int4*>(x.work_tiles) + blockIdx.y);
  return {work_tile.x, work_tile.y, work_tile.z, work_tile.w};
}

}  // namespace moesaic::cuda::sm120
