#include "checkpoint/config_reader.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/json_fields.h"

namespace moesaic {
namespace {

// eos_token_id may be one number or a list.
int first_token(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end()) return -1;
  const Json& value = it->is_array() && !it->empty() ? it->front() : *it;
  return value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() < 1 << 30
             ? value.get<int>()
             : -1;
}

Status read_layer_types(const Json& json, ModelConfig& c, const std::string& name) {
  const auto it = json.find("layer_types");
  for (int i = 0; it == json.end() && i < c.layers && i < 1024; ++i) c.sliding.push_back(i % 2 == 0);
  if (it == json.end()) return {};
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
  const auto it = json.find("quantization_config");
  if (it == json.end() || !it->is_object()) return {};
  const std::string method = text_or(*it, "quant_method", "mxfp4");
  if (method == "mxfp4") return {};
  return error(
      StatusCode::kUnsupported,
      "{}: weights quantised by '{}' are not supported; use the original ones (openai/gpt-oss-20b or "
      "gpt-oss-120b, MXFP4) or a GGUF file",
      name, method.substr(0, 40));
}

}  // namespace

Result<ModelConfig> config_from_hf(const Json& json, const std::string& name) {
  const std::string type = json.is_object() && json.contains("model_type") && json["model_type"].is_string()
                               ? json["model_type"].get<std::string>()
                               : "";
  if (type != "gpt_oss" && json.is_object() &&
      text_or(json, "architectures", "").find("Eagle3") != std::string::npos)
    return error(StatusCode::kUnsupported, "{}: an EAGLE3 draft head, which is no model by itself", name);
  if (type != "gpt_oss")
    return error(StatusCode::kUnsupported, "{}: model_type is '{}', expected gpt_oss", name,
                 type.substr(0, 40));
  RETURN_IF_ERROR(check_quantization(json, name));
  JsonFields f(json, name);
  ModelConfig c{.name = type};
  c.layers = f.integer("num_hidden_layers"), c.hidden = f.integer("hidden_size"),
  c.intermediate = f.integer("intermediate_size");
  c.heads = f.integer("num_attention_heads"), c.kv_heads = f.integer("num_key_value_heads"),
  c.head_dim = f.integer("head_dim");
  c.experts = f.integer("num_local_experts");
  c.experts_per_token = f.integer("num_experts_per_tok",
                                  json.contains("experts_per_token") ? f.integer("experts_per_token") : 4);
  c.vocab = f.integer("vocab_size"), c.window = f.integer("sliding_window"),
  c.max_context = f.integer("max_position_embeddings");
  c.rms_eps = f.number("rms_norm_eps", 1e-5), c.swiglu_limit = f.number("swiglu_limit", 7.0);
  RETURN_IF_ERROR(f.status());
  RETURN_IF_ERROR(read_layer_types(json, c, name));
  RETURN_IF_ERROR(read_rope(json, 150000.0, c.rope, name));
  c.bos_token = first_token(json, "bos_token_id"), c.eos_token = first_token(json, "eos_token_id"),
  c.pad_token = first_token(json, "pad_token_id");
  return c;
}

Result<ModelConfig> config_from_original(const Json& json, const std::string& name) {
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

namespace {

class GgufFields {
 public:
  GgufFields(const GgufFile& file, std::string name) : file_(file), name_(std::move(name)) {}
  const Status& status() const { return status_; }

  double number(const std::string& key, double fallback) {
    const auto it = file_.metadata.find(key);
    if (it == file_.metadata.end()) return fallback;
    if (const auto* i = std::get_if<int64_t>(&it->second)) return static_cast<double>(*i);
    if (const auto* d = std::get_if<double>(&it->second)) return *d;
    if (status_.ok()) status_ = invalid("{}: metadata '{}' is not a number", name_, key);
    return fallback;
  }
  int integer(const std::string& key) {
    if (!file_.metadata.contains(key) && status_.ok())
      status_ = invalid("{}: metadata '{}' is missing", name_, key);
    return integer(key, 0);
  }
  int integer(const std::string& key, int fallback) {
    const double value = number(key, fallback);
    if (!(value >= -1 && value <= 1 << 30) && status_.ok())  // a NaN too
      status_ = invalid("{}: metadata '{}' is out of range", name_, key);
    return status_.ok() ? static_cast<int>(value) : 0;
  }
  std::string text(const std::string& key) const {
    const auto it = file_.metadata.find(key);
    const auto* value = it == file_.metadata.end() ? nullptr : std::get_if<std::string>(&it->second);
    return value != nullptr ? *value : std::string();
  }

 private:
  const GgufFile& file_;
  std::string name_;
  Status status_;
};

}  // namespace

Result<ModelConfig> config_from_gguf(const GgufFile& file, const std::string& name) {
  GgufFields f(file, name);
  const std::string architecture = f.text("general.architecture");
  // Ollama's own converter spells it without the hyphen, and names no scaling of RoPE: it is always YaRN.
  const bool ollama = architecture == "gptoss";
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
  const bool yarn = f.text(p + "rope.scaling.type") == "yarn" || ollama;
  c.rope.factor = yarn ? f.number(p + "rope.scaling.factor", 32.0) : 1.0;
  c.rope.original_context = f.integer(p + "rope.scaling.original_context_length", 4096);
  c.rope.beta_fast = f.number(p + "rope.scaling.yarn_beta_fast", 32.0);
  c.rope.beta_slow = f.number(p + "rope.scaling.yarn_beta_slow", 1.0);
  c.bos_token = f.integer("tokenizer.ggml.bos_token_id", -1),
  c.eos_token = f.integer("tokenizer.ggml.eos_token_id", -1);
  c.pad_token = f.integer("tokenizer.ggml.padding_token_id", -1);
  RETURN_IF_ERROR(f.status());
  const RawTensor* embed = file.tensors.find("token_embd.weight");
  if (embed == nullptr || embed->shape.size() != 2)
    return invalid("{}: tensor 'token_embd.weight' is missing", name);
  c.vocab = embed->shape[0] < 1 << 24 ? static_cast<int>(embed->shape[0]) : 0;
  // llama.cpp fixes the pattern: even layers slide.
  for (int i = 0; i < c.layers && i < 1024; ++i) c.sliding.push_back(i % 2 == 0);
  return c;
}

}  // namespace moesaic
