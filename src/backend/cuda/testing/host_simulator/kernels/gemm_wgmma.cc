#include "backend/cuda/kernels/sm90/gemm_wgmma.cu"
namespace moesaic::cuda::sm90 {
alignas(1024) thread_local uint8_t wgmma_shared[kSharedLimit];
namespace {
const bool given = [] { return on_host::shared_memory = wgmma_shared, true; }();
}
}  // namespace moesaic::cuda::sm90
