#include "backend/cuda/ops/attention.h"

#include "backend/cuda/kernels/sm90/attention.h"
#include "backend/cuda/ops/select.h"
#include "base/error.h"

namespace moesaic::cuda {

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
