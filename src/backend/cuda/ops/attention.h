// Attention by the kernel that select() (select.h) names.
#pragma once

#include "backend/cuda/kernels/common/attention.h"

namespace moesaic::cuda {

struct Target;  // select.h

// Tokens of a tile of several rows.
int tile_tokens(int heads, int kv_heads, int head_dim, const Target& target);
// decode: `tiles` are single rows, each with its KV splits; else they are tiles of several rows.
// scratch: for attend_portable().
Status attend(const Attention& p, bool decode, const Target& target, const SpanScratch& scratch,
              cudaStream_t stream);

}  // namespace moesaic::cuda
