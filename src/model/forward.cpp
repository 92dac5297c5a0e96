#include "model/forward.h"

#include "backend/layer_graph.h"
#include "base/error.h"

namespace moesaic {

Status forward(Backend& backend, const ModelConfig& config, const Batch& batch, std::span<float> logits) {
  if (!batch.sampling.empty() && !backend.can_sample())
    return invalid("batch: {} rows to sample on a backend that cannot sample", batch.sampling.size());
  RETURN_IF_ERROR(backend.begin_step(batch));
  do {
    run_layers(backend, config.layers);
    backend.unembed(logits);
  } while (backend.ops_again());
  return backend.end_step();
}

}  // namespace moesaic
