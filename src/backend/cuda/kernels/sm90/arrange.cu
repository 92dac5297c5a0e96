#include "backend/cuda/kernels/sm90/arrange.cuh"

namespace moesaic::cuda::sm90 {

Status arrange(const void* x, const int32_t* rows, const ActivationTiles& tiles, cudaStream_t stream) {
  const int work_tiles =
      tiles.work_tiles != nullptr ? tiles.most_work_tiles : (tiles.tokens + tiles.tile - 1) / tiles.tile;
  const dim3 ctas((tiles.tile + kArrangeWarps - 1) / kArrangeWarps, work_tiles);
  if (tiles.fp8)
    return launch(arrange_fp8_kernel, ctas, dim3(kArrangeWarps * 32), 0, stream, static_cast<const uint2*>(x),
                  rows, tiles);
  // Experts have many work tiles, most of them empty.
  const int parts = tiles.work_tiles != nullptr ? 1 : (tiles.cols / kBlock + 8 * kAhead - 1) / (8 * kAhead);
  return launch(arrange_kernel, dim3(ctas.x, ctas.y, parts), dim3(kArrangeWarps * 32), 0, stream,
                static_cast<const uint32_t*>(x), rows, tiles);
}

}  // namespace moesaic::cuda::sm90
