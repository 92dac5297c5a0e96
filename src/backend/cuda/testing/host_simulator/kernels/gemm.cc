#include "backend/cuda/kernels/common/gemm.cu"
namespace moesaic::cuda {
alignas(128) uint16_t stages[kLargeMStages * 128 * kLargeMStep];
float partial[kSmallMWarps * 32 * kRowStride];
}  // namespace moesaic::cuda
