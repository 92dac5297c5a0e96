#include "backend/cuda/kernels/common/moe_rows.cu"
namespace moesaic::cuda {
namespace {
thread_local RowChoice row_choice[1];
}
}  // namespace moesaic::cuda
