// bench --speculative: decoding with drafts that are accepted at given chances, beside decoding without.
#pragma once

#include <string>
#include <vector>

#include "model_options.h"

namespace moesaic::app {

struct DraftBenchOptions {
  ModelOptions model;
  std::string speculative;
  std::vector<double> acceptance;  // for each token of a draft, if the one before it was accepted
  std::vector<int> generations, depths, batches;
  int reps = 5;
  std::string format = "md";  // or json
};
Status run_draft_bench(const DraftBenchOptions& options);

}  // namespace moesaic::app
