#include "backend/cuda/kernels/sm90/repack_slabs.cuh"

namespace moesaic::cuda {

Status repack_slabs(const SlabParams& params, cudaStream_t stream) {
  const int slabs = params.down ? params.layout.fc2_all : 2 * params.layout.fc1_all;
  return launch_alone(sm90::slab_kernel, dim3(slabs, static_cast<unsigned>(params.experts)), dim3(256), 0,
                      stream, params);
}

}  // namespace moesaic::cuda
