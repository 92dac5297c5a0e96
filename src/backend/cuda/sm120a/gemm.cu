#include "backend/cuda/sm120a/run_tile.cuh"

namespace moesaic::cuda::sm120a {

Status gemm(const Weights& w, const Tokens& x, Tile tile, const SwiGluMx& out, cudaStream_t stream) {
  return run_tile<Element::kE2M1, 2>(w, x, tile, out, stream);
}
Status gemm(const Weights& w, const Tokens& x, Tile tile, const AtomicCombine& out, cudaStream_t stream) {
  return run_tile<Element::kE2M1, 1>(w, x, tile, out, stream);
}

}  // namespace moesaic::cuda::sm120a
