#include "backend/cuda/ops/expert_weights.h"

#include <algorithm>

#include "backend/cuda/kernels/sm120/load_tile.h"
#include "backend/cuda/kernels/sm120/repack_quads.h"
#include "backend/cuda/kernels/sm90/moe_decode.h"
#include "backend/cuda/kernels/sm90/repack_slabs.h"
#include "base/error.h"

namespace moesaic::cuda {

slabs::SlabLayout slab_layout_of(int device, int max_sms, const RankShare& share) {
  int sms = 0;
  if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return {};
  const int rows = static_cast<int>(share.rows(slabs::kHidden).count);
  return slabs::slab_layout(std::min(max_sms > 0 ? std::min(sms, max_sms) : sms, slabs::kMostSms),
                            2 * rows / 16, rows / 8);
}

bool prepare_slabs(const slabs::SlabLayout& layout) { return sm90::prepare_moe_decode(layout).ok(); }

Status load_quad_kernels(bool experts, bool dense) {
  if (experts) RETURN_IF_ERROR(sm120::load_expert_tiles());
  return dense ? sm120::load_dense_tiles() : Status();
}

bool emulates_quads() { return sm120::emulates(); }

Status repack_weights(const RepackParams& params, cudaStream_t stream) {
  return in_quads(params.kind) ? sm120::repack(params, stream) : repack(params, stream);
}
Status repack_weights(const SlabParams& params, cudaStream_t stream) { return repack_slabs(params, stream); }

}  // namespace moesaic::cuda
