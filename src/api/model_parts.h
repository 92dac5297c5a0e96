// A Model from parts, for programs that make the backend themselves: with options that OpenOptions does not
// have, progress and times of their own.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "moesaic/engine.h"
#include "text/tokenizer.h"

namespace moesaic {

// Plans the memory of weights and cache, then loads the weights. Files that are cut short are reported as
// such, and not as what their missing bytes seem to say.
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
