// The tensors of a LoRA adapter, each pair of factors with the matrix that it belongs to.
#pragma once

#include <vector>

#include "checkpoint/lora_config.h"
#include "checkpoint/tensor_map.h"
#include "core/model_config.h"

namespace moesaic {

enum class LoraTarget { kQ, kK, kV, kO, kRouter, kGateUp, kDown };

// Adds up[e] (down[e] x) to y = W[e] x; scales are in `up`. count: 1, or the number of experts.
struct LoraFactors {
  LoraTarget target = LoraTarget::kQ;
  int layer = 0;
  int64_t count = 1, rank = 0, rows = 0, cols = 0;
  std::vector<float> down, up;  // [count, rank, cols], [count, rows, rank]
};

// All factors of an adapter, multiplied by its own scale and by `scale`. A tensor that is no factor, a factor
// without its other, a size that is not the model's, a NaN: an error of one line.
Result<std::vector<LoraFactors>> lora_factors(const TensorMap& tensors, const LoraConfig& lora, double scale,
                                              const ModelConfig& config);

}  // namespace moesaic
