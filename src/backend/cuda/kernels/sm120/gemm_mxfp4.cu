// The experts' products from MXFP4 activations.
#include "backend/cuda/kernels/sm120/run_tile.cuh"

namespace moesaic::cuda::sm120a {

template Status run_mxfp4<kSwiGluUnits>(const Weights&, const Tokens&, Tile, const SwiGluMx&, cudaStream_t);
template Status run_mxfp4<kRowUnits>(const Weights&, const Tokens&, Tile, const AtomicCombine&, cudaStream_t);
template Status run_mxfp4<kRowUnits>(const Weights&, const Tokens&, Tile, const Store&, cudaStream_t);

}  // namespace moesaic::cuda::sm120a
