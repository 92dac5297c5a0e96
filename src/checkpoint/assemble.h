// From named tensors to ModelWeights, for each of the three naming schemes. Shapes are checked against the
// config.
#pragma once

#include "checkpoint/tensor_map.h"

namespace moesaic {

Result<ModelWeights> assemble_hf(std::shared_ptr<const TensorMap> tensors, const ModelConfig& config);
Result<ModelWeights> assemble_original(std::shared_ptr<const TensorMap> tensors, const ModelConfig& config);
// By ggml's names or Ollama's. ollama: a file of Ollama's own converter, in which gate and up, where they are
// one tensor, have rows in turn; in llama.cpp's (--fuse-gate-up-exps) gate's rows stand before up's. Experts
// in a format without kernels are converted layer by layer, when ModelWeights::convert_experts asks for them.
// conversions, if wanted: a line for people for each format of theirs: "experts: Q4_1 becomes MXFP4 (rounded,
// relative error 0.098): 24 tensors, 2.4 GB become 2.0 GB".
Result<ModelWeights> assemble_gguf(std::shared_ptr<const TensorMap> tensors, const ModelConfig& config,
                                   bool ollama, std::vector<std::string>* conversions = nullptr);

}  // namespace moesaic
