// Experts as they were stored to the slabs of layout/slab_layout.h.
#pragma once

#include "backend/cuda/kernels/common/repack.h"

namespace moesaic::cuda {

Status repack_slabs(const SlabParams& params, cudaStream_t stream);

}  // namespace moesaic::cuda
