#include "backend/cuda/kernels/sm90/gemm_mma.cu"
namespace moesaic::cuda::sm90 {
extern thread_local uint8_t wgmma_shared[kSharedLimit];  // gemm_wgmma.cc has it
namespace {
const bool given = [] { return on_host::shared_memory = wgmma_shared, true; }();
}
}  // namespace moesaic::cuda::sm90
