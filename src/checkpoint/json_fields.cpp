#include "checkpoint/json_fields.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

namespace moesaic {
namespace {

constexpr const char* kLayerTypes[] = {"sliding_attention", "full_attention"};
constexpr const char* kPlainKeys[] = {"rope_type", "type", "rope_theta"};
constexpr const char* kYarnKeys[] = {"rope_type",
                                     "type",
                                     "rope_theta",
                                     "factor",
                                     "beta_fast",
                                     "beta_slow",
                                     "truncate",
                                     "attention_factor",
                                     "mscale",
                                     "mscale_all_dim",
                                     "original_max_position_embeddings"};
constexpr const char* kLlama3Keys[] = {"rope_type",
                                       "type",
                                       "rope_theta",
                                       "factor",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "original_max_position_embeddings"};

Status unsupported(const std::string& name, const std::string& key, const Json& value) {
  return error(StatusCode::kUnsupported, "{}: '{}' is {}, which is not supported", name, key.substr(0, 60),
               shown(value));
}

// Members of the file that apply to all of its RoPE.
struct Outer {
  const Json& json;
  double theta = 0;
};

Status check_known(const Json& scaling, std::span<const char* const> known, const std::string& name) {
  for (const auto& [key, value] : scaling.items()) {
    const bool one = (key == "factor" || key == "partial_rotary_factor") && value == 1;
    if (std::ranges::find(known, key) == known.end() && !one && !asks_for_nothing(value))
      return unsupported(name, key, value);
  }
  return {};
}

double log_scale(double factor, double by) { return factor <= 1 ? 1.0 : 0.1 * by * std::log(factor) + 1.0; }

// The factor of transformers' _compute_yarn_parameters; 0: YaRN's own.
double attention_factor(JsonFields& f, double factor) {
  if (f.has("attention_factor")) {
    const double given = f.number("attention_factor", 0);
    if (!(given > 0)) f.fail("attention_factor", "is not above 0");
    return given;
  }
  const double above = f.number("mscale", 0), below = f.number("mscale_all_dim", 0);
  return above != 0 && below != 0 ? log_scale(factor, above) / log_scale(factor, below) : 0;
}

// Beside RoPE's own parameters or among them; else the model's whole context.
int original_context(JsonFields& outer, JsonFields& f) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (f.has(kKey) && outer.has(kKey) && f.integer(kKey) != outer.integer(kKey))
    f.fail(kKey, "differs from the one outside");
  if (f.has(kKey)) return f.integer(kKey);
  return outer.integer(outer.has(kKey) ? kKey : "max_position_embeddings");
}

Result<RopeConfig> read_yarn(const Outer& o, const Json& scaling, const std::string& name) {
  RETURN_IF_ERROR(check_known(scaling, kYarnKeys, name));
  JsonFields outer(o.json, name), f(scaling, name);
  RopeConfig rope{.theta = f.number("rope_theta", o.theta)};
  rope.original_context = original_context(outer, f);
  if (!scaling.contains("factor")) f.fail("factor", "is missing");
  rope.factor = f.has("factor") ? f.number("factor", 1)
                                : static_cast<double>(outer.integer("max_position_embeddings")) /
                                      std::max(rope.original_context, 1);
  rope.beta_fast = f.number("beta_fast", 0), rope.beta_slow = f.number("beta_slow", 0);
  if (rope.beta_fast == 0) rope.beta_fast = 32;
  if (rope.beta_slow == 0) rope.beta_slow = 1;
  rope.truncate = f.boolean("truncate", true);
  rope.attention_factor = attention_factor(f, rope.factor);
  RETURN_IF_ERROR(f.status());
  RETURN_IF_ERROR(outer.status());
  return rope;
}

Result<RopeConfig> read_llama3(const Outer& o, const Json& scaling, const std::string& name) {
  RETURN_IF_ERROR(check_known(scaling, kLlama3Keys, name));
  JsonFields outer(o.json, name), f(scaling, name);
  RopeConfig rope{.theta = f.number("rope_theta", o.theta), .attention_factor = 1, .llama3 = true};
  rope.original_context = original_context(outer, f);
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"})
    if (!f.has(key)) f.fail(key, "is missing");
  rope.factor = f.number("factor", 1);
  rope.beta_slow = f.number("low_freq_factor", 1), rope.beta_fast = f.number("high_freq_factor", 4);
  if (!(rope.beta_fast > rope.beta_slow)) f.fail("high_freq_factor", "is not above low_freq_factor");
  RETURN_IF_ERROR(f.status());
  RETURN_IF_ERROR(outer.status());
  return rope;
}

Result<RopeConfig> read_one(const Outer& o, const Json& scaling, const std::string& name) {
  if (!scaling.is_object()) return invalid("{}: it is not an object", name);
  const std::string type = text_or(scaling, "rope_type", text_or(scaling, "type", "default"));
  if (text_or(scaling, "type", type) != type)
    return invalid("{}: 'rope_type' and 'type' are not the same", name);
  if (type == "yarn") return read_yarn(o, scaling, name);
  if (type == "llama3") return read_llama3(o, scaling, name);
  if (type != "default")
    return error(StatusCode::kUnsupported,
                 "{}: RoPE type '{}' is not supported; 'yarn', 'llama3' and 'default' are", name,
                 type.substr(0, 40));
  RETURN_IF_ERROR(check_known(scaling, kPlainKeys, name));
  JsonFields f(scaling, name);
  const RopeConfig rope{.theta = f.number("rope_theta", o.theta), .factor = 1.0};
  RETURN_IF_ERROR(f.status());
  return rope;
}

// One for all layers, or one for each type of layer, which must be the same.
Result<RopeConfig> read_scaling(const Outer& o, const Json& scaling, const std::string& name) {
  if (!scaling.is_object()) return invalid("{}: it is not an object", name);
  const auto by_type = [&](const char* type) { return scaling.contains(type); };
  if (std::ranges::none_of(kLayerTypes, by_type)) return read_one(o, scaling, name);
  RETURN_IF_ERROR(check_known(scaling, kLayerTypes, name));
  std::optional<RopeConfig> first;
  for (const char* type : kLayerTypes) {
    if (!scaling.contains(type) || scaling[type].is_null()) continue;
    ASSIGN_OR_RETURN(const RopeConfig rope, read_one(o, scaling[type], fmt::format("{} {}", name, type)));
    if (first && *first != rope)
      return error(StatusCode::kUnsupported,
                   "{}: one RoPE for sliding layers and another for full ones is not "
                   "supported",
                   name);
    first = rope;
  }
  if (!first) return invalid("{}: it is empty", name);
  return *first;
}

}  // namespace

Status read_rope(const Json& json, RopeConfig& rope, const std::string& name) {
  JsonFields outer(json, name);
  rope.theta = outer.number("rope_theta", rope.theta);
  RETURN_IF_ERROR(outer.status());
  const Outer o{json, rope.theta};
  std::optional<RopeConfig> first;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null()) continue;
    const std::string where = fmt::format("{}: '{}'", name, key);
    // transformers takes an empty rope_scaling for none, and an empty rope_parameters for plain RoPE.
    if (it->is_object() && it->empty() && it.key() == "rope_scaling") continue;
    if (it->is_object() && it->empty())
      return invalid("{}: it is empty; remove it, or say which RoPE it is", where);
    ASSIGN_OR_RETURN(const RopeConfig one, read_scaling(o, *it, where));
    if (first && *first != one)
      return invalid("{}: 'rope_scaling' and 'rope_parameters' are not the same", name);
    first = one;
  }
  if (first) rope = *first;
  return {};
}

}  // namespace moesaic
