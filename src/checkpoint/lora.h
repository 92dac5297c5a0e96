// LoRA adapters as peft saves them (a folder with adapter_config.json and adapter_model.safetensors), and
// GGUF files of llama.cpp's convert_lora_to_gguf.py.
//
// Adapted are the attention projections, the router (peft's target_parameters: mlp.router.weight) and the
// experts (mlp.experts.gate_up_proj, mlp.experts.down_proj, or unsloth's module for each expert);
// embed_tokens and lm_head may be brought whole (modules_to_save). A tensor of anything else is an error.
//
// An adapter's products stay apart from the weights (core/weights.h: LayerAdapter), which may be quantised.
// The router is F32 on every device: there W + scale B A is computed once, in double, and rounded to F32, as
// each of its own elements has been.
#pragma once

#include <span>
#include <string>

#include "core/model_config.h"
#include "core/weights.h"
#include "moesaic/status.h"

namespace moesaic {

// An adapter as it is asked for: FOLDER or FOLDER:SCALE. FOLDER may be a GGUF file, or the owner/name of an
// adapter in the Hugging Face cache.
struct LoraChoice {
  std::string folder;
  double scale = 1;  // on top of the adapter's own
};
Result<LoraChoice> lora_choice(const std::string& text);

// Adds all of `adapters` to the weights, each as lora_choice() takes it. One line for an adapter that is
// damaged, of other sizes than the model, or of a kind that is not supported.
Status apply_lora(std::span<const std::string> adapters, const ModelConfig& config, ModelWeights& weights);

// A line for people if an adapter lies beside the model (where find_model() finds it) that is not among
// `adapters`; else empty.
std::string unused_adapter(const std::string& model, std::span<const std::string> adapters);

}  // namespace moesaic
