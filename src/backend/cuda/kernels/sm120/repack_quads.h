// Weights as they were stored to those of layout.h.
#pragma once

#include "backend/cuda/kernels/common/repack.h"

namespace moesaic::cuda::sm120 {

// Packs to Kind::kMxfp4Quads or kMxfp8Quads, the scales among the data.
Status repack(const RepackParams& params, cudaStream_t stream);

}  // namespace moesaic::cuda::sm120
