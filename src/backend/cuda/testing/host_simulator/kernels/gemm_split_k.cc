#include "backend/cuda/kernels/sm90/gemm_split_k.cu"
namespace moesaic::cuda::sm90 {
namespace {
alignas(128) thread_local uint8_t split_k_shared[sizeof(SplitKShared)];
const bool given = [] { return on_host::shared_memory = split_k_shared, true; }();
}  // namespace
}  // namespace moesaic::cuda::sm90
