#include <algorithm>

#include "base/error.h"
#include "checkpoint/config_keys.h"
#include "checkpoint/eagle3.h"
#include "checkpoint/json_fields.h"

namespace moesaic {
namespace {

Status refuse(const std::string& name, std::string_view what) {
  return error(StatusCode::kUnsupported, "{}: {}; EAGLE3 heads with one layer are supported", name, what);
}

Json object_or_empty(const Json& json, const char* key) {
  const Json& value = member(json, key);
  return value.is_object() ? value : Json::object();
}

std::string architecture_of(const Json& json) {
  const Json& all = member(json, "architectures");
  return all.is_array() && !all.empty() && all[0].is_string() ? all[0].get<std::string>() : "";
}

// By what a config of another kind of draft head says of itself.
Status check_kind(const Json& json, const std::string& name) {
  const std::string architecture = architecture_of(json), kind = text_or(json, "speculators_model_type", "");
  if (json.contains("dflash_config") || kind == "dflash" || architecture.starts_with("DFlash"))
    return refuse(name, "a DFlash head is not supported");
  if (member(json, "parallel_drafting") == true || json.contains("ptd_token_id") || kind == "peagle" ||
      architecture.find("PEagle") != std::string::npos)
    return refuse(name, "a P-EAGLE head is not supported");
  if (!kind.empty() && kind != "eagle3")
    return refuse(name, fmt::format("a head of kind '{}' is not supported", kind.substr(0, 40)));
  constexpr std::string_view kKnown[] = {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM",
                                         "Eagle3Speculator", "Eagle3DraftModel"};
  if (std::ranges::find(kKnown, architecture) != std::end(kKnown)) return {};
  return refuse(name, fmt::format("architecture is '{}', expected LlamaForCausalLMEagle3 or Eagle3Speculator",
                                  architecture.substr(0, 60)));
}

Status check_layer(const Json& layer, const std::string& name) {
  JsonFields f(layer, name);
  const int layers = f.integer("num_hidden_layers", 1);
  RETURN_IF_ERROR(f.status());
  if (layers != 1) return refuse(name, fmt::format("a head of {} layers is not supported", layers));
  return check_eagle3_keys(layer, name);
}

Status read_taps(const Json& json, const ModelConfig& target, Eagle3Config& c, const std::string& name) {
  const auto it = json.find("eagle_aux_hidden_state_layer_ids");
  if (it == json.end() || it->is_null() || (it->is_array() && it->empty())) {
    c.taps = default_taps(target.layers);
    return {};
  }
  if (!it->is_array() || it->size() > kMostTaps)
    return invalid("{}: 'eagle_aux_hidden_state_layer_ids' is not a list of at most {}", name, kMostTaps);
  for (const Json& id : *it) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > 1024)
      return invalid("{}: 'eagle_aux_hidden_state_layer_ids' holds something that is no layer", name);
    c.taps.push_back(id.get<int>());
  }
  return {};
}

// A window where the one layer's type says so.
int window_of(const Json& layer, JsonFields& f) {
  const Json& types = member(layer, "layer_types");
  const bool sliding = types.is_array() && !types.empty() && types[0] == "sliding_attention";
  return sliding ? f.integer("sliding_window") : 0;
}

// Other norm_* keys, such as norm_topk_prob, are those of the target or of its experts.
bool is_flag(std::string_view key) {
  constexpr std::string_view kPrefixes[] = {"norm_before_", "norm_after_", "norm_output", "use_"};
  return key == "fc_norm" || key == "eagle_aux_hidden_state_layer_ids" || key == "parallel_draft_step" ||
         std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return key.starts_with(prefix); });
}

}  // namespace

Status other_target(const std::string& name, int hidden, const ModelConfig& target) {
  return invalid("{}: it reads hidden states of {}, the model's have {}; the head belongs to another model",
                 name, hidden, target.hidden);
}

Result<Eagle3Config> eagle3_config(const Json& json, const std::string& name, const ModelConfig& target,
                                   Eagle3Norms& norms) {
  if (!json.is_object()) return invalid("{}: not a JSON object", name);
  RETURN_IF_ERROR(check_kind(json, name));
  const bool speculators = json.contains("transformer_layer_config");
  const Json layer = speculators ? object_or_empty(json, "transformer_layer_config") : json;
  // Flags of the flat form stand in eagle_config or beside it.
  Json flags = object_or_empty(json, "eagle_config");
  for (const auto& [key, value] : json.items()) {
    if (is_flag(key)) flags[key] = value;
  }
  RETURN_IF_ERROR(check_eagle3_flags(flags, name));
  RETURN_IF_ERROR(check_layer(layer, name));
  JsonFields f(layer, name), top(json, name), g(flags, name);
  if (!g.boolean("use_aux_hidden_state", true))
    return refuse(name, "'use_aux_hidden_state' is false: a head without taps is not supported");
  Eagle3Config c{.name = name};
  c.hidden = f.integer("hidden_size"), c.intermediate = f.integer("intermediate_size");
  c.heads = f.integer("num_attention_heads"), c.kv_heads = f.integer("num_key_value_heads", c.heads);
  c.head_dim = f.integer("head_dim", c.heads > 0 ? c.hidden / c.heads : 0);
  c.vocab = f.integer("vocab_size");
  c.draft_vocab = top.integer("draft_vocab_size", c.vocab);
  c.window = window_of(layer, f);
  c.rms_eps = f.number("rms_norm_eps", 1e-6);
  c.norm_before_residual = g.boolean("norm_before_residual", speculators);
  c.norm_output = g.boolean("norm_output", false);
  norms.before_fc = g.boolean("norm_before_fc", false), norms.each_tap = g.boolean("fc_norm", false);
  norms.none = flags.contains("norm_before_fc") && !norms.before_fc && !norms.each_tap;
  const int read = top.integer("target_hidden_size", target.hidden);
  RETURN_IF_ERROR(top.status());
  if (read != target.hidden) return other_target(name, read, target);
  c.rope = {.theta = 10000.0, .factor = 1.0};
  RETURN_IF_ERROR(read_rope(layer, c.rope, name));
  RETURN_IF_ERROR(read_taps(flags, target, c, name));
  for (const JsonFields* fields : {&f, &top, &g}) RETURN_IF_ERROR(fields->status());
  RETURN_IF_ERROR(validate(c, target));
  return c;
}

}  // namespace moesaic
