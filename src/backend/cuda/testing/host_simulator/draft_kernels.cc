// The kernels that a draft head runs on the host, and the shared memory that they name.
#include "backend/cuda/testing/host_simulator/device_stand_ins/backend/cuda/runtime/launch.h"

namespace moesaic::cuda {

alignas(16) float draft_scratch[64];
alignas(16) float partial[8 * 8 * 4 * 33];

}  // namespace moesaic::cuda

#include "backend/cuda/kernels/common/draft.cu"
#include "backend/cuda/kernels/common/gemm.cu"
#include "backend/cuda/weights/repack.cu"
