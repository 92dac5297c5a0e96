// EAGLE3 draft heads as they are published: a folder with config.json and .safetensors, or a GGUF file. Two
// forms of the config: flat (LlamaForCausalLMEagle3, with eagle_config) and speculators
// (transformer_layer_config). Heads of other kinds (P-EAGLE, DFlash, EAGLE 1 and 2, Medusa) are refused by
// name, and so is every tensor and every field that would change the numbers in a way that is not
// implemented.
#pragma once

#include <string>

#include "checkpoint/json.h"
#include "checkpoint/tensor_map.h"
#include "core/eagle3.h"
#include "moesaic/status.h"

namespace moesaic {

struct Eagle3Head {
  Eagle3Config config;
  Eagle3Weights weights;  // views of the mapped file
};

// path: a folder, a GGUF file, or owner/name of a head in the Hugging Face cache; of a folder with GGUF
// files, its head. One line for a head that is damaged or does not fit the target. Values are looked at by
// validate(weights, config), which a backend calls.
Result<Eagle3Head> open_eagle3(const std::string& path, const ModelConfig& target);

// Its two parts, for the fuzzer too. Norms whose flags are set must be among the tensors.
struct Eagle3Norms {
  bool before_fc = false, each_tap = false;  // input_norm, fc_norm
  bool none = false;                         // the flags are there and say no
};
// The error for a head that reads hidden states of another size.
Status other_target(const std::string& name, int hidden, const ModelConfig& target);
Result<Eagle3Config> eagle3_config(const Json& json, const std::string& name, const ModelConfig& target,
                                   Eagle3Norms& norms);
Result<Eagle3Weights> eagle3_weights(std::shared_ptr<const TensorMap> tensors, const Eagle3Config& config,
                                     const Eagle3Norms& norms);

}  // namespace moesaic
