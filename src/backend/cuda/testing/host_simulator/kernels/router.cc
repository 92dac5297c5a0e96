#include "backend/cuda/kernels/common/router.cu"
namespace moesaic::cuda {
namespace {
alignas(16) thread_local float4 stages[kStages * kStageVectors];
}  // namespace
}  // namespace moesaic::cuda
