// Attention on Hopper, in the two orders of sums that kernels/common/attention.h describes.
#pragma once

#include "backend/cuda/kernels/common/attention.h"

namespace moesaic::cuda {

// Groups of its tiles.
constexpr int prefill_groups(int head_dim) { return head_dim > 64 ? 2 : 3; }
Status attend_prefill(const Attention& p, cudaStream_t stream);
// Reads pages of earlier steps, `tiles` and `pages` before its predecessor has ended. So only the first
// operation of a step, which waits for everything before it, may write those.
Status attend_decode(const Attention& p, cudaStream_t stream);

}  // namespace moesaic::cuda
