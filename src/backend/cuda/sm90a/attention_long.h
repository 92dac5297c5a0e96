// Attention of many single rows with contexts of several spans: see attention_long.cu.
#pragma once

#include "backend/cuda/attention.h"

namespace moesaic::cuda::sm90a {

// Spans of the longest context. A window may begin within one.
inline int spans_of(const Attention& p) { return (p.blocks + kSpanBlocks - 1) / kSpanBlocks; }

Status attend_long(const Attention& p, cudaStream_t stream);

}  // namespace moesaic::cuda::sm90a
