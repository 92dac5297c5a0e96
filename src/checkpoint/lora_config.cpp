#include "checkpoint/lora_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"

namespace moesaic {
namespace {

constexpr int kMostRank = 4096;

// These say how an adapter was begun or trained, or on which modules, which its tensors tell.
constexpr const char* kHarmless[] = {"peft_type",         "peft_version",
                                     "task_type",         "auto_mapping",
                                     "revision",          "base_model_name_or_path",
                                     "base_model_class",  "parent_library",
                                     "inference_mode",    "r",
                                     "lora_alpha",        "lora_dropout",
                                     "use_rslora",        "rank_pattern",
                                     "alpha_pattern",     "bias",
                                     "init_lora_weights", "target_modules",
                                     "exclude_modules",   "modules_to_save",
                                     "target_parameters", "layers_to_transform",
                                     "layers_pattern",    "megatron_core",
                                     "qalora_group_size", "loftq_config",
                                     "eva_config",        "lora_ga_config",
                                     "runtime_config"};

// Ways to begin that change the base model's weights as well.
constexpr const char* kChangedBases[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

Status unsupported(const std::string& name, const std::string& field, const OrderedJson& value) {
  return error(StatusCode::kUnsupported, "{}: '{}' is {}, which is not supported; use a plain LoRA adapter",
               name, field.substr(0, 60), shown(value));
}

// Whole matrices that were trained, too: the embedding and the head can be taken instead of the model's.
Status read_saved(const OrderedJson& json, const std::string& name, LoraConfig& c) {
  const OrderedJson saved = json.value("modules_to_save", OrderedJson());
  if (asks_for_nothing(saved)) return {};
  for (const OrderedJson& module : saved.is_array() ? saved : OrderedJson::array({saved})) {
    const std::string text = module.is_string() ? module.get<std::string>() : "";
    const bool embedding = text == "embed_tokens" || text == "model.embed_tokens";
    if (!embedding && text != "lm_head")
      return error(StatusCode::kUnsupported,
                   "{}: 'modules_to_save' has {}, which is not supported; embed_tokens and lm_head are", name,
                   shown(module));
    (embedding ? c.saves_embedding : c.saves_head) = true;
  }
  return {};
}

Status check_fields(const OrderedJson& json, const std::string& name) {
  for (const auto& [field, value] : json.items()) {
    const bool harmless = std::ranges::find(kHarmless, field) != std::end(kHarmless);
    if (!harmless && !asks_for_nothing(value)) return unsupported(name, field, value);
  }
  const OrderedJson type = json.value("peft_type", OrderedJson("LORA")),
                    bias = json.value("bias", OrderedJson("none"));
  if (type != "LORA") return unsupported(name, "peft_type", type);
  if (!asks_for_nothing(bias) && bias != "none") return unsupported(name, "bias", bias);
  const OrderedJson begun = json.value("init_lora_weights", OrderedJson(true));
  if (!begun.is_string()) return {};
  for (const char* const way : kChangedBases) {
    if (begun.get<std::string>().starts_with(way))
      return error(
          StatusCode::kUnsupported,
          "{}: init_lora_weights {} changes the base model's weights, too; save the adapter as a plain "
          "LoRA (peft: path_initial_model_for_weight_conversion)",
          name, shown(begun));
  }
  return {};
}

// A name, at most with a leading "^": peft takes regular expressions.
Status check_pattern(const std::string& name, const char* field, const std::string& pattern) {
  const std::string_view plain = std::string_view(pattern).substr(pattern.starts_with('^') ? 1 : 0);
  const bool known = std::ranges::all_of(plain, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
  });
  if (known && !plain.empty()) return {};
  return error(StatusCode::kUnsupported, "{}: {} has '{}'; only names of modules are supported there", name,
               field, pattern.substr(0, 80));
}

// peft's rule: the whole name, or its end after a dot; the first pattern that matches.
bool matches(const std::string& pattern, const std::string& module) {
  if (pattern.starts_with('^')) return module == std::string_view(pattern).substr(1);
  if (!module.ends_with(pattern)) return false;
  return module.size() == pattern.size() || module[module.size() - pattern.size() - 1] == '.';
}

template <typename T>
T value_for(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module, T otherwise) {
  for (const auto& [pattern, value] : patterns) {
    if (matches(pattern, module)) return value;
  }
  return otherwise;
}

bool is_rank(const OrderedJson& value) {
  return value.is_number_integer() && value.get<int64_t>() >= 1 && value.get<int64_t>() <= kMostRank;
}
// "0.19.1", "0.22.1.dev0@0123456". What became 0.19 called itself 0.18 with ".dev". Adapters without a
// version are older.
bool is_since_0_19(const OrderedJson& version) {
  const std::string text = version.is_string() ? version.get<std::string>() : "0.0";
  const size_t dot = text.find('.');
  const int major = number_of<int>(text.substr(0, dot)).value_or(0);
  const std::string_view rest =
      std::string_view(text).substr(dot == std::string::npos ? text.size() : dot + 1);
  const int minor = number_of<int>(rest.substr(0, rest.find('.'))).value_or(0);
  return major > 0 || minor >= 19 || (minor == 18 && text.find(".dev") != std::string::npos);
}

bool is_alpha(const OrderedJson& value) { return value.is_number() && std::isfinite(value.get<double>()); }

template <typename T>
Result<std::vector<std::pair<std::string, T>>> read_patterns(const OrderedJson& json, const char* field,
                                                             bool (*valid)(const OrderedJson&),
                                                             const std::string& name) {
  std::vector<std::pair<std::string, T>> patterns;
  const OrderedJson given = json.value(field, OrderedJson());
  if (given.is_null()) return patterns;
  if (!given.is_object()) return invalid("{}: '{}' is not an object", name, field);
  for (const auto& [pattern, value] : given.items()) {
    RETURN_IF_ERROR(check_pattern(name, field, pattern));
    if (!valid(value))
      return invalid("{}: {} of '{}' is {}", name, field, pattern.substr(0, 80), shown(value));
    patterns.emplace_back(pattern, value.template get<T>());
  }
  return patterns;
}

}  // namespace

Result<LoraConfig> lora_config(const OrderedJson& json, const std::string& name) {
  if (!json.is_object()) return invalid("{}: not the config of an adapter", name);
  RETURN_IF_ERROR(check_fields(json, name));
  LoraConfig c;
  RETURN_IF_ERROR(read_saved(json, name, c));
  const OrderedJson base = json.value("base_model_name_or_path", OrderedJson()),
                    rank = json.value("r", OrderedJson(c.rank)),
                    alpha = json.value("lora_alpha", OrderedJson(c.alpha));
  if (base.is_string()) c.base_model = base.get<std::string>();
  if (!is_rank(rank)) return invalid("{}: r is {}, expected 1 to {}", name, shown(rank), kMostRank);
  if (!is_alpha(alpha)) return invalid("{}: lora_alpha is {}, expected a number", name, shown(alpha));
  c.rank = rank.get<int>(), c.alpha = alpha.get<double>();
  const OrderedJson stabilized = json.value("use_rslora", OrderedJson(false));
  if (!stabilized.is_boolean() && !stabilized.is_null())
    return invalid("{}: use_rslora is {}, expected true or false", name, shown(stabilized));
  c.rank_stabilized = stabilized.is_boolean() && stabilized.get<bool>();
  c.may_be_transposed = is_since_0_19(json.value("peft_version", OrderedJson()));
  ASSIGN_OR_RETURN(c.rank_pattern, read_patterns<int>(json, "rank_pattern", is_rank, name));
  ASSIGN_OR_RETURN(c.alpha_pattern, read_patterns<double>(json, "alpha_pattern", is_alpha, name));
  return c;
}

int rank_of(const LoraConfig& config, const std::string& module) {
  return value_for(config.rank_pattern, module, config.rank);
}

double scale_of(const LoraConfig& config, const std::string& module) {
  const double rank = rank_of(config, module);
  return value_for(config.alpha_pattern, module, config.alpha) /
         (config.rank_stabilized ? std::sqrt(rank) : rank);
}

}  // namespace moesaic
