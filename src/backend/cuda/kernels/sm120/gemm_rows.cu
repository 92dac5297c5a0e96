// Products that leave rows: GEMM 2 and the dense layers.
#include "backend/cuda/kernels/sm120/run_tile.cuh"

namespace moesaic::cuda::sm120 {
namespace {

template <class Epilogue>
Status run_element(const QuadWeights& w, const Tokens& x, Tile tile, const Epilogue& out,
                   cudaStream_t stream) {
  return w.element == Element::kE4M3 ? run_tile<Element::kE4M3, kRowWeightTiles>(w, x, tile, out, stream)
                                     : run_tile<Element::kE2M1, kRowWeightTiles>(w, x, tile, out, stream);
}

}  // namespace

Status gemm(const QuadWeights& w, const Tokens& x, Tile tile, const Store& out, cudaStream_t stream) {
  return run_element(w, x, tile, out, stream);
}
Status gemm(const QuadWeights& w, const Tokens& x, Tile tile, const Qkv& out, cudaStream_t stream) {
  return run_element(w, x, tile, out, stream);
}

}  // namespace moesaic::cuda::sm120
