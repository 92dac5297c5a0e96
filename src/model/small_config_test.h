// For tests: the config of a small model with experts, whose layers slide in turn.
#pragma once

#include "core/model_config.h"

namespace moesaic {

inline ModelConfig small_config(int layers) {
  ModelConfig config{.name = "test",
                     .layers = layers,
                     .hidden = 96,
                     .intermediate = 96,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 32,
                     .experts = 6,
                     .experts_per_token = 4,
                     .vocab = 300,
                     .window = 128,
                     .max_context = 2048};
  for (int layer = 0; layer < layers; ++layer) config.sliding.push_back(layer % 2 == 0);
  return config;
}

}  // namespace moesaic
