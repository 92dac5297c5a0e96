#include "backend/cuda/kernels/common/route.cu"
namespace moesaic::cuda {
namespace {
alignas(16) thread_local float4 values[4096];
thread_local int plan_counts[12 << 10], route_ids[12 << 10];
}  // namespace
}  // namespace moesaic::cuda
