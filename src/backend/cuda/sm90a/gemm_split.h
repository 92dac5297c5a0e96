// The experts' products for about 9 to 128 tokens of a step, on Hopper: see gemm_split.cu.
//
// Every sum runs along the contraction in one order, that of moe_decode.h for 5 and more tokens: a token's
// result does not depend on the batch, the job or the grid.
#pragma once

#include "backend/cuda/gemm.h"
#include "backend/cuda/sm90a/moe_decode_layout.h"

namespace moesaic::cuda::sm90a {

inline constexpr int kSplitTokens = 16;  // of a job, at most

// The first product and SwiGLU (alpha 1.702, limit 7). x: F16, jobs of at most kSplitTokens slots; h: [slots,
// 2880] F16, times kHScale.
Status split_up(const uint8_t* fc1, const Activations& x, __half* h, cudaStream_t stream);
// The second, whose biases stand in the slabs: out.bias is not used.
Status split_down(const uint8_t* fc2, const Activations& h, const Store& out, cudaStream_t stream);

}  // namespace moesaic::cuda::sm90a
