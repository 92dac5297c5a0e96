#include "core/model_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace moesaic {
namespace {

struct Bound {
  const char* name;
  int64_t value, low, high;
};

Status check_bounds(const ModelConfig& c) {
  const Bound bounds[] = {
      {"layers", c.layers, 1, 1024},
      {"hidden_size", c.hidden, 32, 1 << 17},
      {"intermediate_size", c.intermediate, 32, 1 << 17},
      {"num_attention_heads", c.heads, 1, 1024},
      {"num_key_value_heads", c.kv_heads, 1, 1024},
      {"head_dim", c.head_dim, 2, 256},
      {"num_local_experts", c.experts, 1, 4096},
      {"num_experts_per_tok", c.experts_per_token, 1, std::min(c.experts, 64)},
      {"vocab_size", c.vocab, 1, 1 << 22},
      {"sliding_window", c.window, 1, 1 << 24},
      {"max_position_embeddings", c.max_context, 1, 1 << 24},
  };
  for (const Bound& b : bounds) {
    if (b.value < b.low || b.value > b.high) {
      return invalid("model config: {} is {}, expected {} to {}", b.name, b.value, b.low, b.high);
    }
  }
  return {};
}

// The (fractional) dimension whose wavelength turns `rotations` times over the original context.
double correction_dim(const RopeConfig& rope, int head_dim, double rotations) {
  return head_dim * std::log(rope.original_context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// The share of a frequency that is not interpolated: YaRN's ramp over the dimensions.
double kept_by_dimension(const RopeConfig& rope, int head_dim, int dimension) {
  double low = correction_dim(rope, head_dim, rope.beta_fast),
         high = correction_dim(rope, head_dim, rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  return 1.0 - std::clamp((dimension - low) / (high - low), 0.0, 1.0);
}

// Llama 3's ramp over the turns in the original context.
double kept_by_turns(const RopeConfig& rope, double frequency) {
  const double turns = rope.original_context * frequency / (2 * std::numbers::pi);
  return std::clamp((turns - rope.beta_slow) / (rope.beta_fast - rope.beta_slow), 0.0, 1.0);
}

}  // namespace

Status validate(const ModelConfig& c) {
  RETURN_IF_ERROR(check_bounds(c));
  if (c.hidden % 32 != 0) return invalid("model config: hidden_size {} is not a multiple of 32", c.hidden);
  if (c.intermediate % 32 != 0)
    return invalid("model config: intermediate_size {} is not a multiple of 32", c.intermediate);
  if (c.head_dim % 2 != 0) return invalid("model config: head_dim {} is odd", c.head_dim);
  if (c.q_size() % 32 != 0)
    return invalid("model config: heads * head_dim = {} is not a multiple of 32", c.q_size());
  if (c.heads % c.kv_heads != 0)
    return invalid("model config: {} query heads do not divide into {} KV heads", c.heads, c.kv_heads);
  if (std::ssize(c.sliding) != c.layers)
    return invalid("model config: layer_types has {} entries for {} layers", c.sliding.size(), c.layers);
  const RopeConfig& r = c.rope;
  if (!(r.theta > 1 && r.theta < 1e12) || !(r.factor >= 1 && r.factor <= 1e6) || !(r.beta_fast > 0) ||
      !(r.beta_slow > 0) || r.original_context < 1 ||
      !(r.attention_factor >= 0 && r.attention_factor < 1e3)) {
    return invalid(
        "model config: RoPE parameters out of range (theta {}, factor {}, beta_fast {}, beta_slow {}, "
        "original context {}, attention factor {})",
        r.theta, r.factor, r.beta_fast, r.beta_slow, r.original_context, r.attention_factor);
  }
  if (!(c.rms_eps > 0 && c.rms_eps < 1) || !(c.swiglu_limit > 0 && c.swiglu_limit < 1e6) ||
      !(std::fabs(c.swiglu_alpha) < 1e6))
    return invalid("model config: rms_norm_eps {}, swiglu_limit {} or swiglu_alpha {} out of range",
                   c.rms_eps, c.swiglu_limit, c.swiglu_alpha);
  return {};
}

Result<ModelConfig> published_config(const std::string& name) {
  const bool large = name == "gpt-oss-120b";
  if (!large && name != "gpt-oss-20b")
    return invalid("unknown model '{}': known are gpt-oss-20b and gpt-oss-120b", name);
  ModelConfig c{.name = name,
                .layers = large ? 36 : 24,
                .hidden = 2880,
                .intermediate = 2880,
                .heads = 64,
                .kv_heads = 8,
                .head_dim = 64,
                .experts = large ? 128 : 32,
                .experts_per_token = 4,
                .vocab = 201088,
                .window = 128,
                .sliding = {},
                .max_context = 131072};
  c.bos_token = 199998, c.eos_token = 200002, c.pad_token = 199999;
  for (int i = 0; i < c.layers; ++i) c.sliding.push_back(i % 2 == 0);
  return c;
}

LayerShape layer_shape(const ModelConfig& c, int layer) {
  return {.hidden = c.hidden,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .window = c.sliding[static_cast<size_t>(layer)] ? c.window : 0,
          .experts = c.experts,
          .experts_per_token = c.experts_per_token,
          .intermediate = c.intermediate,
          .rms_eps = c.rms_eps,
          .swiglu_alpha = c.swiglu_alpha,
          .swiglu_limit = c.swiglu_limit,
          .swiglu_offset = 1};
}

RopeTable make_rope_table(const RopeConfig& rope, int head_dim) {
  const int half = head_dim / 2;
  RopeTable table{.inverse_frequency = std::vector<double>(static_cast<size_t>(half)),
                  .attention_factor = 1.0};
  for (int i = 0; i < half; ++i) {
    const double extrapolated = std::pow(rope.theta, -2.0 * i / head_dim);
    const double keep =
        rope.llama3 ? kept_by_turns(rope, extrapolated) : kept_by_dimension(rope, head_dim, i);
    const double interpolated = extrapolated / rope.factor;
    table.inverse_frequency[static_cast<size_t>(i)] =
        rope.factor > 1 ? interpolated * (1 - keep) + extrapolated * keep : extrapolated;
  }
  if (rope.factor > 1) table.attention_factor = 0.1 * std::log(rope.factor) + 1.0;
  if (rope.attention_factor > 0) table.attention_factor = rope.attention_factor;
  return table;
}

}  // namespace moesaic
