// prepare_dense() and paged_attention() of layer_operators.h: the device chooses the backend.
#include "backend/layer_operators.h"
#include "backend/reference/layer_operators.h"
#include "base/error.h"
#if MOESAIC_CUDA
#include "backend/cuda/operators/layer_operators.h"
#else
#include "backend/backend.h"
#endif

namespace moesaic {

#if !MOESAIC_CUDA
namespace cuda {
namespace {
Status absent(const char* op) { return error(StatusCode::kUnsupported, "{}: {}", op, no_gpu_reason()); }
size_t attention_workspace_bytes(const PagedAttentionCall&) { return 0; }
Status paged_attention(const PagedAttentionCall&) { return absent("paged_attention"); }
Result<std::unique_ptr<DenseOperator>> prepare_dense(const DenseOptions&, const DenseMatrix&, void*) {
  return absent("dense");
}
}  // namespace
}  // namespace cuda
#endif

Result<size_t> attention_workspace_bytes(const PagedAttentionCall& call) {
  RETURN_IF_ERROR(check_sizes(call));
  const bool empty = call.rows == 0 || call.sequences == 0;
  return empty || call.device == kHost ? size_t{0} : cuda::attention_workspace_bytes(call);
}

Status paged_attention(const PagedAttentionCall& call) {
  RETURN_IF_ERROR(check(call));
  if (call.rows == 0 || call.sequences == 0) return {};
  return call.device == kHost ? reference::paged_attention(call) : cuda::paged_attention(call);
}

Result<std::unique_ptr<DenseOperator>> prepare_dense(const DenseOptions& options, const DenseMatrix& matrix,
                                                     void* stream) {
  RETURN_IF_ERROR(check(options, matrix));
  return options.device == kHost ? reference::prepare_dense(options, matrix)
                                 : cuda::prepare_dense(options, matrix, stream);
}

}  // namespace moesaic
