#include "backend/cuda/kernels/common/paged_attention.cu"
namespace moesaic::cuda {
namespace attention_portable {
alignas(128) thread_local uint8_t portable_memory[portable_shared_bytes(128, false)];
}
namespace {
const bool given = [] { return on_host::shared_memory = attention_portable::portable_memory, true; }();
}
}  // namespace moesaic::cuda
