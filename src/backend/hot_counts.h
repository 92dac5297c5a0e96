// How often a model's experts were chosen, kept when it is unloaded: the next run begins with the hot experts
// of the one before.
#pragma once

#include <string>

#include "backend/hot_experts.h"
#include "core/model_config.h"
#include "core/weights.h"
#include "moesaic/status.h"

namespace moesaic {

// Names a model by its sizes and by values of its routers, whichever file it is read from. Weights can be
// read.
std::string hot_counts_key(const ModelConfig& config, const ModelWeights& weights);

// Begins with the counts that are kept in the folder, if there are any. Counts of other layers of the same
// model are matched from its last layer on. False: none are there, or they are damaged or make no sense, and
// nothing is changed.
bool read_hot_counts(const std::string& folder, const std::string& key, ExpertUse& use);
// Replaces what is kept. Nothing is written where nothing was chosen.
Status write_hot_counts(const std::string& folder, const std::string& key, const ExpertUse& use);

}  // namespace moesaic
