#include "backend/cuda/kernels/common/gemm.cu"
namespace moesaic::cuda {
alignas(128) thread_local uint16_t stages[kLargeMStages * 128 * kLargeMStep];
thread_local float partial[kSmallMWarps * 32 * kRowStride];
}  // namespace moesaic::cuda
