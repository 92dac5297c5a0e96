// The layouts of experts' weights on a device, and the work that must be done before their kernels run. A
// caller knows slabs and quads (select.h's ExpertsLayout), but not which devices have kernels for them.
#pragma once

#include "backend/cuda/kernels/common/repack.h"
#include "backend/cuda/layout/slab_layout.h"
#include "core/rank_share.h"

namespace moesaic::cuda {

// The layout of a rank's slabs for the device, or for max_sms multiprocessors of it (0: all).
slabs::SlabLayout slab_layout_of(int device, int max_sms, const RankShare& share = {});
// Prepares the kernels for slabs of this layout on the current device, before anything is captured. False
// where the device does not run them.
bool prepare_slabs(const slabs::SlabLayout& layout);
// Bytes of what the kernel for few rows hands from one product to the other (ExpertsDecode::h).
constexpr size_t slab_scratch_bytes(int rows) {
  return size_t{2} * static_cast<size_t>(rows) * slabs::kTopK * slabs::kHidden;
}

// Loads the kernels for quads, of experts or of dense matrices, before there are requests.
Status load_quad_kernels(bool experts, bool dense);
// True if the current device has no instruction for quads and emulates it. Ask after load_quad_kernels().
bool emulates_quads();

// To the order of params.kind.
Status repack_weights(const RepackParams& params, cudaStream_t stream);
Status repack_weights(const SlabParams& params, cudaStream_t stream);

}  // namespace moesaic::cuda
