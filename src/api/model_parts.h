// A Model from its parts, for programs that make the backend themselves: with options that OpenOptions lacks,
// or with their own progress display and timing.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "moesaic/engine.h"
#include "text/tokenizer.h"

namespace moesaic {

// Plans the memory of weights and cache, then loads the weights. A truncated file is reported as truncated,
// whatever its missing bytes would mean.
Status load_weights(const Checkpoint& checkpoint, const KvDemand& cache, Backend& backend,
                    const LoadProgress& progress = {});

struct ModelParts {
  ModelConfig config;
  std::unique_ptr<Backend> backend;  // with the weights loaded
  Tokenizer tokenizer;
  Engine engine;  // of this backend
};
Model make_model(ModelParts parts);

}  // namespace moesaic
