#include "backend/cuda/kernels/sm120/gemm.cu"
#include "backend/cuda/kernels/sm120/gemm_rows.cu"
namespace moesaic::cuda::sm120 {
alignas(128) thread_local uint8_t small_m_shared[kSmShared];
alignas(128) thread_local uint8_t large_m_shared[kSmShared];
namespace {
const bool given = [] { return on_host::shared_memory = small_m_shared, true; }();
}
}  // namespace moesaic::cuda::sm120
