// Chooses which layers' experts stay in host memory, before a model is loaded.
#pragma once

#include <string>

#include "backend/host_placement.h"
#include "engine/kv_layout.h"

namespace moesaic {

// Places experts as the backend was asked to (BackendOptions::experts): those of so many layers, or of as
// many as do not fit on its device beside the rest and a cache of this demand. Where the host's memory has no
// room for all that are its own, it holds a part of them (Backend::hold_experts()). Fails if a device's host
// has too little memory even for that; of other backends plan_memory() says so.
Status place_experts(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                     Backend& backend);

// The demand, with one request of some 8,192 tokens where nobody said how many there are or how long.
KvDemand least_demand(KvDemand demand, const ModelConfig& config);

// True if memory may hold this share of the experts while a step reads the rest from the file: there is a
// file (dummy weights have none), no expert is converted at load, and those of one token fit.
bool may_hold_part(double share, const ModelConfig& config, const ModelWeights& weights);

// "experts of layers 11 to 23 (13 of 24) in host memory, 6.9 GB"; empty: all are on the device.
std::string placement_words(const ModelConfig& config, const ModelWeights& weights, Backend& backend);

}  // namespace moesaic
