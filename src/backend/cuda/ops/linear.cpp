#include "backend/cuda/ops/linear.h"

#include "base/error.h"

namespace moesaic::cuda {

Status no_kernel(const char* op, const Matrix& w, int tokens) {
  return error(StatusCode::kInternal, "cuda: {} has no kernel for {} weights{}, {} x {}, {} tokens", op,
               kind_name(w.kind), in_quads(w.kind) ? " in quads" : "", w.rows, w.cols, tokens);
}

}  // namespace moesaic::cuda
