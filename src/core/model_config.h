// The sizes and constants of a gpt-oss model, as config.json or GGUF metadata give them. Every field is read
// from the file; the defaults here are only those that the architecture fixes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

// YaRN (arXiv 2309.00071) as gpt-oss uses it: the low and high bounds are not rounded. The defaults are those
// of transformers' GptOssConfig.
struct RopeConfig {
  double theta = 150000.0;
  double factor = 32.0;  // 1: plain RoPE, no interpolation
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int original_context = 4096;  // tokens
  bool truncate = false;
  double attention_factor = 0;  // on cos and sin; 0: YaRN's own, 0.1 ln(factor) + 1
  // Llama 3's interpolation, by turns instead of by dimension: beta_fast is its high_freq_factor, beta_slow
  // its low_freq_factor.
  bool llama3 = false;

  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  std::string name;
  int layers = 0;
  int hidden = 0;        // multiple of 32
  int intermediate = 0;  // each expert's, multiple of 32
  int heads = 0;         // query heads
  int kv_heads = 0;
  int head_dim = 0;  // even, at most 256
  int experts = 0;
  int experts_per_token = 0;
  int vocab = 0;
  int window = 0;             // tokens, the token itself included; of the layers marked below
  std::vector<bool> sliding;  // [layers] true: attends to the last `window` tokens only
  int max_context = 0;        // tokens
  double rms_eps = 1e-5;
  double swiglu_alpha = 1.702;
  double swiglu_limit = 7.0;
  RopeConfig rope;
  bool tied_head = false;  // the head is the embedding where the file has none
  int bos_token = -1, eos_token = -1, pad_token = -1;

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
};

// One line that names the first impossible or unsupported value.
Status validate(const ModelConfig& config);

// The sizes and constants of one layer. An op takes those of its layer: the layers of a model may differ, and
// a draft head's layer is one more (core/eagle3.h).
struct LayerShape {
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;   // tokens that it attends to; 0: all
  int experts = 0;  // 0: it has one dense MLP and no router
  int experts_per_token = 0;
  int intermediate = 0;
  double rms_eps = 1e-5;
  // gate * sigmoid(alpha * gate) * (up + offset), gate and up clamped at the limit.
  double swiglu_alpha = 1, swiglu_limit = std::numeric_limits<double>::infinity(), swiglu_offset = 0;

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
};
LayerShape layer_shape(const ModelConfig& config, int layer);

// The published sizes, for `dummy:` models. name: "gpt-oss-20b" or "gpt-oss-120b".
Result<ModelConfig> published_config(const std::string& name);

// RoPE's angular step per position and the factor on cos and sin.
struct RopeTable {
  std::vector<double> inverse_frequency;  // [head_dim / 2]
  double attention_factor = 1.0;
};
RopeTable make_rope_table(const RopeConfig& rope, int head_dim);

}  // namespace moesaic
