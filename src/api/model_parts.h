// A Model from its parts, for programs that make the backend themselves: with options that OpenOptions lacks,
// or with their own progress display and timing.
#pragma once

#include <memory>

#include "api/draft_parts.h"
#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "moesaic/engine.h"
#include "text/tokenizer.h"

namespace moesaic {

// The choices by which a device is made.
struct DeviceChoice {
  std::string device;  // "auto", or as asked for
  BackendOptions options;
  std::string ranks = {};  // why so many, where settle_ranks() has chosen; empty: as asked for
};

// The engine's options: those that were asked for, and those that were chosen where nothing was.
struct EnginePlan {
  EngineOptions options;
  KvDemand demand;
  ModelInfo info;
  EngineOptions wanted = {};
};

// Chooses context and cache where they are 0, for weights that are not loaded yet. Where "auto" gave a GPU
// that has too little memory for them, `backend` becomes the CPU's.
Result<EnginePlan> plan_engine(const Checkpoint& checkpoint, const EngineOptions& wanted,
                               const DeviceChoice& choice, std::unique_ptr<Backend>& backend,
                               DraftParts* drafts = nullptr);

// Once the weights are loaded: chooses again what was not asked for where less memory is free than was
// planned with. Other programs may have taken it, and under ulimit -v threads and the allocator take address
// space.
Status fit_again(EnginePlan& plan, const Checkpoint& checkpoint, Backend& backend);

// The lines that say what was chosen and why: device, memory, context, batch.
std::vector<std::string> describe(const ModelInfo& info);

// Plans the memory of weights and cache, then loads the weights. A truncated file is reported as truncated,
// whatever its missing bytes would mean.
Status load_weights(const Checkpoint& checkpoint, const KvDemand& cache, Backend& backend,
                    const LoadProgress& progress = {});

struct ModelParts {
  ModelConfig config;
  std::unique_ptr<Backend> backend;  // with the weights loaded
  Tokenizer tokenizer;
  Engine engine;             // uses this backend
  ModelInfo info;            // but for the device's memory
  uint64_t fingerprint = 0;  // fingerprint.h
};
Model make_model(ModelParts parts);

}  // namespace moesaic
