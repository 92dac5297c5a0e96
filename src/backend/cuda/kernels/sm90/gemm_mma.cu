#include "backend/cuda/kernels/sm90/gemm_wgmma.cuh"

namespace moesaic::cuda::sm90 {

Status mma_experts(const uint8_t* fc1, const ActivationTiles& x, float factor, const WgmmaSwiGlu& out,
                   cudaStream_t stream) {
  return launch_wgmma<MmaSlabWeights<false>, kMmaTokens>(slab_params(fc1, x, 2 * out.columns, factor), out,
                                                         stream);
}
Status mma_experts(const uint8_t* fc2, const ActivationTiles& x, float factor, const Store& out,
                   cudaStream_t stream) {
  return launch_wgmma<MmaSlabWeights<true>, kMmaTokens>(slab_params(fc2, x, out.rows, factor), out, stream);
}

}  // namespace moesaic::cuda::sm90
