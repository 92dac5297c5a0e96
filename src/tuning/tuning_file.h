// The kernels of tuning/moe_kernels.h that were measured as quickest: kept in a file for each device, driver,
// program and shape.
#pragma once

#include <string>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

// A measurement holds only for exactly this.
struct TuningKey {
  std::string device, driver, program;
  int experts = 0, top_k = 0, hidden = 0, intermediate = 0;
  std::string configs;  // the names there were to choose from
  bool operator==(const TuningKey&) const = default;
};

struct TunedStep {
  int tokens = 0;
  std::string config;
  double seconds = 0;
};

// Ascending in tokens; empty where there is no file for the key, or a damaged one: then it is to be measured
// again.
std::vector<TunedStep> read_tuning(const std::string& folder, const TuningKey& key);
// Replaces the key's file in one step: whoever reads it meanwhile sees the old or the new one.
Status write_tuning(const std::string& folder, const TuningKey& key, const std::vector<TunedStep>& steps);
std::string tuning_path(const std::string& folder, const TuningKey& key);

// Returns the measured step nearest to `tokens` in ratio. Null: the nearest has less than half or more than
// twice as many tokens. Numbers beyond the last step always get that step.
const TunedStep* nearest_step(const std::vector<TunedStep>& steps, int tokens);

}  // namespace moesaic
