// Attention of single rows with contexts of several spans: see attention_long.cu.
#pragma once

#include "backend/cuda/attention.h"

namespace moesaic::cuda::sm90a {

Status attend_long(const Attention& p, cudaStream_t stream);

}  // namespace moesaic::cuda::sm90a
