// Products that leave rows: GEMM 2 and the dense layers.
#include "backend/cuda/kernels/sm120/run_tile.cuh"

namespace moesaic::cuda::sm120a {
namespace {

template <class Epilogue>
Status run_element(const Weights& w, const Tokens& x, Tile tile, const Epilogue& out, cudaStream_t stream) {
  constexpr Element kTokens = Element::kE4M3;
  return w.element == Element::kE4M3 ? run_tile<Element::kE4M3, kTokens, kRowUnits>(w, x, tile, out, stream)
                                     : run_tile<Element::kE2M1, kTokens, kRowUnits>(w, x, tile, out, stream);
}

}  // namespace

Status gemm(const Weights& w, const Tokens& x, Tile tile, const Store& out, cudaStream_t stream) {
  if (x.element == Element::kE2M1) return run_mxfp4<kRowUnits>(w, x, tile, out, stream);
  return run_element(w, x, tile, out, stream);
}
Status gemm(const Weights& w, const Tokens& x, Tile tile, const Qkv& out, cudaStream_t stream) {
  return run_element(w, x, tile, out, stream);
}

}  // namespace moesaic::cuda::sm120a
