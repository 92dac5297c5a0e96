#include "checkpoint/config_reader.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/config_keys.h"
#include "checkpoint/json_fields.h"

namespace moesaic {
namespace {

// eos_token_id may be one number or a list.
int first_token(const Json& json, const char* key) {
  const Json& given = member(json, key);
  const Json& value = given.is_array() && !given.empty() ? given.front() : given;
  return value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() < 1 << 30
             ? value.get<int>()
             : -1;
}

Status read_layer_types(const Json& json, ModelConfig& c, const std::string& name) {
  const auto it = json.find("layer_types");
  const bool given = it != json.end() && !it->is_null();
  for (int i = 0; !given && i < c.layers && i < 1024; ++i) c.sliding.push_back(i % 2 == 0);
  if (!given) return {};
  if (!it->is_array() || std::ssize(*it) != c.layers)
    return invalid("{}: 'layer_types' does not list {} layers", name, c.layers);
  for (const Json& type : *it) {
    const std::string text = type.is_string() ? type.get<std::string>() : "";
    if (text != "sliding_attention" && text != "full_attention")
      return invalid("{}: unknown layer type '{}'", name, text.substr(0, 40));
    c.sliding.push_back(text == "sliding_attention");
  }
  return {};
}

// Folders that other programs have quantised again.
Status check_quantization(const Json& json, const std::string& name) {
  const bool mlx = !asks_for_nothing(member(json, "quantization"));  // and in quantization_config, too
  const char* const key = mlx ? "quantization" : "quantization_config";
  const Json& given = member(json, key);
  if (given.is_null()) return {};
  if (!given.is_object()) return invalid("{}: '{}' is not an object", name, key);
  const std::string method = text_or(given, "quant_method", mlx || given.contains("bits") ? "MLX" : "mxfp4");
  const bool own = std::ranges::any_of(
      formats(), [&](const FormatInfo& f) { return f.only_ours() && method == own_quant_method(f); });
  if (method == "mxfp4" || own) return {};
  return error(
      StatusCode::kUnsupported,
      "{}: weights quantised by '{}' are not supported; use the original ones (openai/gpt-oss-20b or "
      "gpt-oss-120b, MXFP4) or a GGUF file",
      name, method.substr(0, 40));
}

// One number that has two names.
int either(JsonFields& f, const char* key, const char* other) {
  if (f.has(key) && f.has(other) && f.integer(key) != f.integer(other))
    f.fail(
        key,
        fmt::format("and '{0}' are not the same; transformers reads the first: remove '{0}'", other).c_str());
  return f.integer(f.has(key) || !f.has(other) ? key : other);
}

// null: no layer slides, so that it does not matter.
int window_of(JsonFields& f, const Json& json, const ModelConfig& c) {
  const bool none = json.contains("sliding_window") && !f.has("sliding_window");
  if (!none) return f.integer("sliding_window");
  if (std::ranges::count(c.sliding, true) > 0) return f.fail("sliding_window", "is null, but layers slide");
  return std::max(c.max_context, 1);
}

}  // namespace

std::string own_quant_method(const FormatInfo& dense) { return fmt::format("moesaic_{}", dense.option); }

Status check_hf_kind(const Json& json, const std::string& name) {
  const std::string type = string_or(json, "model_type", "");
  if (type != "gpt_oss" && json.is_object() &&
      text_or(json, "architectures", "").find("Eagle3") != std::string::npos)
    return error(StatusCode::kUnsupported, "{}: an EAGLE3 draft head, which is no model by itself", name);
  if (type != "gpt_oss")
    return error(StatusCode::kUnsupported, "{}: model_type is '{}', expected gpt_oss", name,
                 type.substr(0, 40));
  return check_quantization(json, name);
}

Result<ModelConfig> config_from_hf(const Json& json, const std::string& name) {
  RETURN_IF_ERROR(check_hf_kind(json, name));
  RETURN_IF_ERROR(check_hf_keys(json, name));
  JsonFields f(json, name);
  ModelConfig c{.name = "gpt_oss"};
  c.layers = f.integer("num_hidden_layers"), c.hidden = f.integer("hidden_size"),
  c.intermediate = f.integer("intermediate_size");
  c.heads = f.integer("num_attention_heads"), c.kv_heads = f.integer("num_key_value_heads"),
  c.head_dim = f.integer("head_dim");
  c.experts = either(f, "num_local_experts", "num_experts");
  const bool top_k = f.has("num_experts_per_tok") || f.has("experts_per_token");
  c.experts_per_token = top_k ? either(f, "num_experts_per_tok", "experts_per_token") : 4;
  c.vocab = f.integer("vocab_size"), c.max_context = f.integer("max_position_embeddings");
  c.rms_eps = f.number("rms_norm_eps", 1e-5), c.swiglu_limit = f.number("swiglu_limit", c.swiglu_limit);
  c.swiglu_alpha = f.number("swiglu_alpha", c.swiglu_alpha);
  c.tied_head = f.boolean("tie_word_embeddings", false);
  RETURN_IF_ERROR(f.status());
  RETURN_IF_ERROR(read_layer_types(json, c, name));
  c.window = window_of(f, json, c);
  RETURN_IF_ERROR(f.status());
  RETURN_IF_ERROR(read_rope(json, c.rope, name));
  if (c.rope.llama3)
    return error(StatusCode::kUnsupported, "{}: RoPE type 'llama3' is supported in draft heads alone", name);
  c.bos_token = first_token(json, "bos_token_id"), c.eos_token = first_token(json, "eos_token_id"),
  c.pad_token = first_token(json, "pad_token_id");
  return c;
}

Result<ModelConfig> config_from_original(const Json& json, const std::string& name) {
  RETURN_IF_ERROR(check_original_keys(json, name));
  JsonFields f(json, name);
  ModelConfig c{.name = "gpt-oss"};
  c.layers = f.integer("num_hidden_layers"), c.hidden = f.integer("hidden_size"),
  c.intermediate = f.integer("intermediate_size");
  c.heads = f.integer("num_attention_heads"), c.kv_heads = f.integer("num_key_value_heads"),
  c.head_dim = f.integer("head_dim");
  c.experts = f.integer("num_experts"), c.experts_per_token = f.integer("experts_per_token", 4);
  c.vocab = f.integer("vocab_size"), c.window = f.integer("sliding_window");
  c.swiglu_limit = f.number("swiglu_limit", 7.0);
  c.rope.theta = f.number("rope_theta", 150000.0), c.rope.factor = f.number("rope_scaling_factor", 32.0);
  // OpenAI's names: ntk_alpha is YaRN's beta_slow, ntk_beta its beta_fast.
  c.rope.beta_slow = f.number("rope_ntk_alpha", 1.0), c.rope.beta_fast = f.number("rope_ntk_beta", 32.0);
  c.rope.original_context = f.integer("initial_context_length", 4096);
  RETURN_IF_ERROR(f.status());
  c.max_context = static_cast<int>(std::clamp(c.rope.original_context * c.rope.factor, 0.0, 16777216.0));
  for (int i = 0; i < c.layers && i < 1024; ++i) c.sliding.push_back(i % 2 == 0);
  c.bos_token = 199998, c.eos_token = 200002, c.pad_token = 199999;
  return c;
}

}  // namespace moesaic
