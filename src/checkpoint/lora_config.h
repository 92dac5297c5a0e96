// peft's adapter_config.json: what of it changes the numbers. Whatever would change them in a way that is not
// implemented is an error that names the field.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/json.h"
#include "moesaic/status.h"

namespace moesaic {

struct LoraConfig {
  std::string base_model;  // as its author named it; may be empty
  int rank = 8;
  double alpha = 8;
  bool rank_stabilized = false;  // use_rslora: the scale is alpha / sqrt(rank), else alpha / rank
  // Names of modules, or their ends at a dot, in the file's order; "^" before one: the whole name.
  std::vector<std::pair<std::string, int>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  bool may_be_transposed = false;  // peft 0.19 or later: factors of all experts may be those of the transpose
  bool saves_embedding = false, saves_head = false;  // modules_to_save
};

// name: of the file, for messages.
Result<LoraConfig> lora_config(const OrderedJson& json, const std::string& name);

// The rank of a module such as "model.layers.0.self_attn.q_proj".
int rank_of(const LoraConfig& config, const std::string& module);
double scale_of(const LoraConfig& config, const std::string& module);

}  // namespace moesaic
