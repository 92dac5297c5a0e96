// The tensors of a LoRA adapter, each pair of factors with the matrix that it belongs to.
#pragma once

#include <vector>

#include "checkpoint/gguf.h"
#include "checkpoint/lora_config.h"
#include "checkpoint/tensor_map.h"
#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic {

// kGate and kUp: the even and the odd rows of kGateUp, as GGUF has them.
enum class LoraTarget { kQ, kK, kV, kO, kRouter, kGateUp, kGate, kUp, kDown };

// Adds up[e] (down[e] x) to y = W[e] x; scales are in `up`. count: 1, or the number of experts.
struct LoraFactors {
  LoraTarget target = LoraTarget::kQ;
  int layer = 0;
  int64_t expert = -1;  // the only one that is adapted; -1: all, or the matrix is none of an expert
  int64_t count = 1, rank = 0, rows = 0, cols = 0;
  std::vector<float> down, up;  // [count, rank, cols], [count, rows, rank]
};

// All factors of an adapter, multiplied by its own scale and by `scale`. A tensor that is no factor, a factor
// without its other, a size that is not the model's, a NaN: an error of one line.
Result<std::vector<LoraFactors>> lora_factors(const TensorMap& tensors, const LoraConfig& lora, double scale,
                                              const ModelConfig& config);

// The same of a GGUF file, as llama.cpp's convert_lora_to_gguf.py writes it; name: for messages.
Result<std::vector<LoraFactors>> gguf_lora_factors(GgufFile& file, const std::string& name, double scale,
                                                   const ModelConfig& config);

// A factor's values. F32, F16, BF16 or Q8_0; module: for messages.
Result<std::vector<float>> lora_floats(const RawTensor& tensor, const std::string& module);

// Whole matrices that an adapter brings instead of the model's (peft's modules_to_save).
struct SavedModules {
  MatrixView embed, head;  // [vocab, hidden]; without data where it has none
};
// Takes them out of the tensors. Those that the config lists must be there.
Result<SavedModules> take_saved_modules(TensorMap& tensors, const LoraConfig& lora,
                                        const ModelConfig& config);

}  // namespace moesaic
