// The metadata of a GGUF file as a ModelConfig.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/gguf_fields.h"

namespace moesaic {
namespace {

// The keys behind the architecture's name that are read, and those that change nothing here. llama.cpp copies
// a target's numbers of experts to its draft head, which has none.
constexpr const char* kCommonKeys[] = {"block_count",
                                       "context_length",
                                       "embedding_length",
                                       "feed_forward_length",
                                       "expert_count",
                                       "expert_used_count",
                                       "attention.head_count",
                                       "attention.head_count_kv",
                                       "attention.key_length",
                                       "attention.layer_norm_rms_epsilon",
                                       "rope.freq_base",
                                       "rope.scaling.type",
                                       "rope.scaling.factor",
                                       "rope.scaling.original_context_length",
                                       "rope.scaling.yarn_beta_fast",
                                       "rope.scaling.yarn_beta_slow",
                                       "vocab_size",
                                       "rope.scaling.finetuned"};
// A draft head has no such keys.
constexpr const char* kModelKeys[] = {"expert_feed_forward_length", "attention.sliding_window",
                                      "tensor_data_layout", "pooling_type", "expert_weights_norm"};

// Keys that llama.cpp has for some models, with what they must say here.
struct FixedMetadata {
  const char* key;
  double value;
  double other = value;  // means the same
};
std::vector<FixedMetadata> fixed_keys(const ModelConfig& c) {
  constexpr double kSoftmaxOfTheChosen = 3;  // llama.cpp's gating functions
  const auto dim = static_cast<double>(c.head_dim);
  return {{"attention.value_length", dim},
          {"attention.key_length_swa", dim},
          {"attention.value_length_swa", dim},
          {"attention.causal", 1},
          {"rope.dimension_count", dim},
          {"rope.dimension_count_swa", dim},
          {"rope.freq_base_swa", c.rope.theta},
          {"rope.scale_linear", 1},
          {"rope.scaling.attn_factor", 1},
          {"rope.scaling.yarn_attn_factor", 1},
          {"rope.scaling.yarn_ext_factor", 1, -1},
          {"expert_weights_scale", 1, 0},
          {"expert_gating_func", kSoftmaxOfTheChosen, 0},
          {"interleave_moe_layer_step", 1},
          {"swiglu_limit", c.swiglu_limit},
          {"swiglu_alpha", c.swiglu_alpha}};
}

// 0, false, "" and [] ask for nothing.
bool says_nothing(const GgufValue& value) {
  return std::visit(
      [](const auto& v) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(v)>>)
          return v == 0;
        else
          return v.empty();
      },
      value);
}

// A file has float where this has double.
bool says(const GgufValue& value, double expected) {
  const auto same = [&](double v) { return std::fabs(v - expected) <= 1e-6 * std::fabs(expected); };
  if (const auto* i = std::get_if<int64_t>(&value)) return same(static_cast<double>(*i));
  if (const auto* d = std::get_if<double>(&value)) return same(*d);
  if (const auto* b = std::get_if<bool>(&value)) return same(*b ? 1 : 0);
  return false;
}

// Every second layer slides, the first one too: as a period, or layer by layer.
bool is_usual_pattern(const GgufValue& value) {
  const auto* layers = std::get_if<std::vector<int64_t>>(&value);
  for (size_t i = 0; layers != nullptr && i < layers->size(); ++i)
    if (((*layers)[i] != 0) != (i % 2 == 0)) return false;
  return layers != nullptr || says(value, 2);
}

}  // namespace

Status check_metadata(const GgufFile& file, const std::string& prefix, std::span<const char* const> own,
                      const ModelConfig& c, const std::string& name) {
  const std::vector<FixedMetadata> fixed = fixed_keys(c);
  for (auto it = file.metadata.lower_bound(prefix);
       it != file.metadata.end() && it->first.starts_with(prefix); ++it) {
    const std::string key = it->first.substr(prefix.size());
    const auto is_key = [&](const char* k) { return key == k; };
    if (std::ranges::any_of(kCommonKeys, is_key) || std::ranges::any_of(own, is_key)) continue;
    const auto rule = std::ranges::find_if(fixed, [&](const FixedMetadata& f) { return key == f.key; });
    const bool usual = rule != fixed.end() ? says(it->second, rule->value) || says(it->second, rule->other)
                       : key == "attention.sliding_window_pattern" ? is_usual_pattern(it->second)
                                                                   : says_nothing(it->second);
    if (!usual)
      return error(StatusCode::kUnsupported, "{}: metadata '{}' says what is not supported here", name,
                   it->first.substr(0, 120));
  }
  return {};
}

// llama.cpp takes a factor without a type for linear scaling.
void read_gguf_scaling(GgufFields& f, const std::string& p, bool ollama, const std::string& name, int context,
                       RopeConfig& rope) {
  const std::string type = f.text(p + "rope.scaling.type");
  const double factor = f.number(p + "rope.scaling.factor", ollama ? 32.0 : 1.0);
  if (type != "yarn" && !(ollama && type.empty())) {
    const bool none = type.empty() || type == "none" || type == "linear";
    if (!none || (factor != 0 && factor != 1))
      f.fail(error(StatusCode::kUnsupported, "{}: RoPE scaling '{}' by {} is not supported; expected yarn",
                   name, type.empty() ? "linear" : type.substr(0, 40), factor));
    rope.factor = 1;
    return;
  }
  rope.factor = factor;
  if (!ollama && !f.has(p + "rope.scaling.factor"))
    f.fail(invalid("{}: metadata '{}rope.scaling.factor' is missing", name, p));
  rope.original_context = f.integer(p + "rope.scaling.original_context_length", ollama ? 4096 : context);
  rope.beta_fast = f.number(p + "rope.scaling.yarn_beta_fast", 32.0);
  rope.beta_slow = f.number(p + "rope.scaling.yarn_beta_slow", 1.0);
}

Result<ModelConfig> config_from_gguf(const GgufFile& file, const std::string& name) {
  GgufFields f(file, name);
  const std::string architecture = f.text("general.architecture");
  const bool ollama = file.written_by_ollama();
  if (architecture == "eagle3")
    return error(StatusCode::kUnsupported, "{}: an EAGLE3 draft head, which is no model by itself", name);
  if (f.text("general.type") == "adapter")
    return invalid("{}: a LoRA adapter, not a model; run: -m BASE-MODEL --lora {}", name, name);
  if (architecture != "gpt-oss" && !ollama)
    return error(StatusCode::kUnsupported, "{}: architecture is '{}', expected gpt-oss", name,
                 architecture.substr(0, 40));
  const std::string p = architecture + ".";
  ModelConfig c{.name = f.text("general.name")};
  c.layers = f.integer(p + "block_count"), c.hidden = f.integer(p + "embedding_length");
  c.intermediate = f.integer(p + "expert_feed_forward_length", f.integer(p + "feed_forward_length", 0));
  c.heads = f.integer(p + "attention.head_count"), c.kv_heads = f.integer(p + "attention.head_count_kv");
  c.head_dim = f.integer(p + "attention.key_length", c.heads > 0 ? c.hidden / c.heads : 0);
  c.experts = f.integer(p + "expert_count"), c.experts_per_token = f.integer(p + "expert_used_count");
  c.window = f.integer(p + "attention.sliding_window"), c.max_context = f.integer(p + "context_length");
  c.rms_eps = f.number(p + "attention.layer_norm_rms_epsilon", 1e-5);
  c.rope.theta = f.number(p + "rope.freq_base", 150000.0);
  read_gguf_scaling(f, p, ollama, name, c.max_context, c.rope);
  c.bos_token = f.integer("tokenizer.ggml.bos_token_id", -1),
  c.eos_token = f.integer("tokenizer.ggml.eos_token_id", -1);
  c.pad_token = f.integer("tokenizer.ggml.padding_token_id", -1);
  RETURN_IF_ERROR(f.status());
  RETURN_IF_ERROR(check_metadata(file, p, kModelKeys, c, name));
  const RawTensor* embed = file.tensors.find("token_embd.weight");
  if (embed == nullptr || embed->shape.size() != 2)
    return invalid("{}: tensor 'token_embd.weight' is missing", name);
  c.vocab = embed->shape[0] < 1 << 24 ? static_cast<int>(embed->shape[0]) : 0;
  // llama.cpp fixes the pattern: even layers slide.
  for (int i = 0; i < c.layers && i < 1024; ++i) c.sliding.push_back(i % 2 == 0);
  return c;
}

}  // namespace moesaic
