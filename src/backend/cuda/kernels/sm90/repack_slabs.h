// Experts as they were stored to the slabs of layout/slab_layout.h.
#pragma once

#include "backend/cuda/kernels/common/repack.h"
#include "backend/cuda/layout/slab_layout.h"

namespace moesaic::cuda {

struct SlabParams {
  Raw source[2];  // gate and up, or down
  bool down;
  sm90::SlabLayout layout;
  int64_t experts;
  const float* bias[2];  // of the experts' gate and up, or down; [experts, rows of the section]
  uint8_t* out;
  size_t expert_bytes;
  int* fault;  // a RepackFault is left here
};
Status repack_slabs(const SlabParams& params, cudaStream_t stream);

}  // namespace moesaic::cuda
