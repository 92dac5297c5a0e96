#include "model/forward.h"

#include "base/error.h"

namespace moesaic {

Status forward(Backend& backend, const ModelConfig& config, const Batch& batch, std::span<float> logits) {
  if (!batch.draws.empty() && !backend.can_sample())
    return invalid("batch: {} draws for a backend that draws none", batch.draws.size());
  RETURN_IF_ERROR(backend.begin_step(batch));
  backend.embed();
  for (int layer = 0; layer < config.layers; ++layer) {
    backend.qkv(layer);
    backend.attend(layer);
    backend.project(layer);
    backend.moe(layer);
  }
  backend.unembed(logits);
  return backend.end_step();
}

}  // namespace moesaic
