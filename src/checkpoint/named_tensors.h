// Weights that another program has in memory already, by Hugging Face's names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic {

// data may be a device's memory: only where a tensor stands is looked at, not what is in it.
struct NamedTensor {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::string dtype;           // "BF16", "F16", "F32" or "U8"
  std::vector<int64_t> shape;  // outermost first; contiguous
  const void* data = nullptr;
};
struct NamedModel {
  ModelConfig config;
  ModelWeights weights;  // views of the tensors, which their owner keeps
};
// config: the text of Hugging Face's config.json. An error names the tensor that is missing or of another
// shape than the config says.
Result<NamedModel> model_of_tensors(std::string_view config, const std::vector<NamedTensor>& tensors);

}  // namespace moesaic
