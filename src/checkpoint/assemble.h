// From named tensors to ModelWeights, for each of the three naming schemes. Shapes are checked against the
// config.
#pragma once

#include "checkpoint/tensor_map.h"

namespace moesaic {

Result<ModelWeights> assemble_hf(std::shared_ptr<const TensorMap> tensors, const ModelConfig& config);
Result<ModelWeights> assemble_original(std::shared_ptr<const TensorMap> tensors, const ModelConfig& config);
Result<ModelWeights> assemble_gguf(std::shared_ptr<const TensorMap> tensors, const ModelConfig& config);

}  // namespace moesaic
