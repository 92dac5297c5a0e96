// The operators of backend/layer_operators.h on a GPU.
#pragma once

#include "backend/cuda/kernels/common/paged_attention.h"
#include "backend/layer_operators.h"

namespace moesaic::cuda {

inline PagedLayout layout_of(const PagedCache& c) {
  const int64_t bytes = c.fp8 ? 1 : 2;
  return {.page_stride = c.page_stride * bytes,
          .token_stride = c.token_stride * bytes,
          .head_stride = c.head_stride * bytes,
          .page_tokens = c.page_tokens,
          .pages = static_cast<int>(c.pages)};
}

size_t attention_workspace_bytes(const PagedAttentionCall& call);
Status paged_attention(const PagedAttentionCall& call);
Result<std::unique_ptr<DenseOperator>> prepare_dense(const DenseOptions& options, const DenseMatrix& matrix,
                                                     void* stream);

}  // namespace moesaic::cuda
