#include "backend/cuda/kernels/sm120/tokens.cu"
namespace moesaic::cuda::sm120 {
namespace {
alignas(16) thread_local float4 normed[4096];
}
}  // namespace moesaic::cuda::sm120
