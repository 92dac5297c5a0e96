// The operators of backend/layer_operators.h on the host's memory, in double precision.
#pragma once

#include "backend/layer_operators.h"

namespace moesaic::reference {

Status paged_attention(const PagedAttentionCall& call);
Result<std::unique_ptr<DenseOperator>> prepare_dense(const DenseOptions& options, const DenseMatrix& matrix);

}  // namespace moesaic::reference
