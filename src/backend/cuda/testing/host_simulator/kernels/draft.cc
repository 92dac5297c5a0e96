#include "backend/cuda/kernels/common/draft.cu"
namespace moesaic::cuda {
alignas(16) thread_local float draft_scratch[64];
}  // namespace moesaic::cuda
