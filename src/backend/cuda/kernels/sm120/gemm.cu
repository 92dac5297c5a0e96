#include "backend/cuda/kernels/sm120/run_tile.cuh"

namespace moesaic::cuda::sm120 {

Status gemm(const QuadWeights& w, const Tokens& x, Tile tile, const SwiGluMx& out, cudaStream_t stream) {
  if (w.element != Element::kE2M1)
    return Status(StatusCode::kInternal, "cuda: SwiGLU's product has no kernel for MXFP8 weights in quads, " +
                                             std::to_string(w.weight_tiles * kWeightTileRows) + " x " +
                                             std::to_string(x.cols));
  return run_tile<Element::kE2M1, kSwiGluWeightTiles>(w, x, tile, out, stream);
}

const void* any_tile() {
  return reinterpret_cast<const void*>(
      block_scaled_small_m_kernel<Element::kE2M1, 1, kSwiGluWeightTiles, SwiGluMx>);
}

}  // namespace moesaic::cuda::sm120
