// Loads a model's weights, or counts what they take.
#pragma once

#include <vector>

#include "backend/cuda/layout/model.h"
#include "backend/host_experts.h"

namespace moesaic::cuda {

Paths paths_of(const ModelConfig& config, const ModelWeights& weights, const BackendOptions& options);
// The memory that the model's weights take, by part. host_layers: the experts of the last so many layers are
// the host's, and are not counted, but the room is for those that steps bring here (kStreamPart).
std::vector<MemoryPart> count_model(const ModelConfig& config, const ModelWeights& weights,
                                    const BackendOptions& options, const Paths& paths, int host_layers);
// True if steps may bring the experts of host layers to the device (ops/expert_stream.h).
bool may_stream(const ModelWeights& weights, const BackendOptions& options, int host_layers);
// How many of each host layer's experts are here as well (LoadedModel::hot).
int hot_experts(const ModelConfig& config, const ModelWeights& weights, const BackendOptions& options,
                int host_layers);
// Uploads and repacks. host: gets the experts of the last host_layers layers; null if those are none. An
// error for a model that the kernels do not take, a damaged tensor or lack of memory.
Result<LoadedModel> load_model(const ModelConfig& config, const ModelWeights& weights,
                               const BackendOptions& options, const LoadProgress& progress,
                               cudaStream_t stream, int host_layers, HostExperts* host);

}  // namespace moesaic::cuda
