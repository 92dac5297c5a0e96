#include "backend/cuda/ops/attention.h"

#include "backend/cuda/kernels/sm90/attention.h"
#include "backend/cuda/ops/select.h"
#include "base/error.h"

namespace moesaic::cuda {

int tile_tokens(int heads, int kv_heads, int head_dim, const Target& target) {
  const auto config =
      select(AttentionShape{.decode = false, .head_dim = head_dim, .group = heads / kv_heads}, target);
  const bool hopper = config.ok() && config.value()->kernel == AttentionKernel::kPrefill;
  return tile_tokens(heads, kv_heads, hopper ? prefill_groups(head_dim) : kPrefillGroups);
}

Status attend(const Attention& p, bool decode, const Target& target, const SpanScratch& scratch,
              cudaStream_t stream) {
  const AttentionShape shape{.decode = decode, .head_dim = p.head_dim, .group = p.heads / p.kv_heads};
  ASSIGN_OR_RETURN(const AttentionConfig* const config, select(shape, target));
  switch (config->kernel) {
    case AttentionKernel::kDecode:
      return attend_decode(p, stream);
    case AttentionKernel::kPrefill:
      return attend_prefill(p, stream);
    case AttentionKernel::kPortable:
      break;
  }
  return attend_portable(p, scratch, stream);
}

}  // namespace moesaic::cuda
