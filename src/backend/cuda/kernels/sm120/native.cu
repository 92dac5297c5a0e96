// Compiled with the tiles and for their architectures: of the code that the driver picks for a device, says
// whether it has block-scaled MMA or emulates it.
#include "backend/cuda/kernels/ptx/block_scaled_mma.cuh"
#include "backend/cuda/kernels/sm120/load_tile.h"

namespace moesaic::cuda::sm120 {
namespace {

__device__ int native_mma = MOESAIC_NATIVE_BLOCK_SCALED_MMA;

}  // namespace

cudaError_t read_native_mma(int& native) { return cudaMemcpyFromSymbol(&native, native_mma, sizeof(native)); }

}  // namespace moesaic::cuda::sm120
