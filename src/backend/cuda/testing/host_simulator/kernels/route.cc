#include "backend/cuda/kernels/common/route.cu"
namespace moesaic::cuda {
namespace {
alignas(16) float4 values[4096];
int plan_counts[12 << 10], route_ids[12 << 10];
}  // namespace
}  // namespace moesaic::cuda
