#include "backend/cuda/kernels/sm90/moe_decode.cu"
namespace moesaic::cuda::sm90 {
namespace {
alignas(128) thread_local uint8_t raw[std::max(sizeof(MoeDecodeShared<Configs<kFullSms>::EightTokens>),
                                               sizeof(MoeDecodeShared<Configs<0>::EightTokens>))];
const bool given = [] { return on_host::shared_memory = raw, true; }();
}  // namespace
}  // namespace moesaic::cuda::sm90
