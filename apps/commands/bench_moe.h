// bench --moe: the MoE operator alone.
#pragma once

#include <string>
#include <vector>

#include "model_options.h"

namespace moesaic::app {

struct MoeBench {
  ModelOptions model;
  std::vector<int> tokens;
  int delay = 0;              // seconds before each of them
  std::string format = "md";  // md, json or csv
};
Status run_moe_bench(const MoeBench& o);

}  // namespace moesaic::app
