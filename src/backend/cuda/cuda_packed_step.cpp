// A step on a caller's stream, cache and packed inputs (operators/step_operator.cpp).
#include <utility>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/kernels/common/pack_step.h"
#include "backend/layer_graph.h"

namespace moesaic::cuda {

// Runs all layers, and the final norm on every row.
Status CudaBackend::run_normed(void* out) {
  run_layers(*this, model_.config.layers);
  timed(kUnembed, -1, 0, 0, [&]() -> Status {
    Norm last =
        norm_rows(2 * model_.config.layers + 1, shape_.rows, std::exchange(deferred_, DeferredResidual()));
    last.weight = model_.final_norm.as<float>(), last.out = out;
    RETURN_IF_ERROR(norm(last, stream_));
    return check(cudaMemcpyAsync(pinned_fault_.as<int>(), fault_.as<int>(), sizeof(int),
                                 cudaMemcpyDeviceToHost, stream_),
                 "step");
  });
  return fault_status_;
}

// Captures record on the backend's own stream, on which nothing runs; all that runs does so on
// the caller's.
Status CudaBackend::run_packed(const StepShape& shape, bool captures, void* out, cudaStream_t stream) {
  shape_ = shape, at_ = layout_of(shape), fault_status_ = {}, deferred_ = {};
  graphs_.skip();
  if (captures) RETURN_IF_ERROR(begin_graph());
  if (captures && (graphs_.replaying() || graphs_.capturing())) {
    const Status recorded = run_normed(out);
    if (graphs_.end_capture(shape_, recorded, stream_)) return graphs_.launch(shape_, stream);
    fault_status_ = {}, deferred_ = {};
  }
  cudaStream_t const own = std::exchange(stream_, stream);
  Status status = run_normed(out);
  if (!status.ok()) status = abandoned(status);
  stream_ = own;
  return status;
}

Status CudaBackend::logits_of(const void* normed, int rows, float* logits, cudaStream_t stream) {
  Activations x{.x = normed, .tokens = rows};
  if (!takes_bf16(model_.head.kind)) {
    x.x = normed_.as<void>(), x.factor = 1.0f / model_.final_factor;
    RETURN_IF_ERROR(to_half(normed, int64_t{rows} * model_.config.hidden, model_.final_factor,
                            normed_.as<void>(), stream));
  }
  LinearSetup setup{target_, model_.slab_layout, tiles_.as<void>(), stream};
  return linear(model_.head, x,
                Store{.out = logits, .stride = model_.config.vocab, .rows = model_.config.vocab}, setup);
}

Status CudaBackend::forget_fault(cudaStream_t stream) {
  RETURN_IF_ERROR(wait_(stream, "step"));
  cudaStream_t const own = std::exchange(stream_, stream);
  Status fault = fault_of(std::exchange(*pinned_fault_.as<int>(), 0));
  stream_ = own;
  return fault;
}

}  // namespace moesaic::cuda
