#include "checkpoint/json_fields.h"

namespace moesaic {

Status read_rope(const Json& json, double theta, RopeConfig& rope, const std::string& name) {
  const char* key = json.contains("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const auto it = json.find(key);
  const Json scaling = it != json.end() && it->is_object() ? *it : Json::object();
  JsonFields outer(json, name), f(scaling, name + " " + key);
  rope.theta = f.number("rope_theta", outer.number("rope_theta", theta));
  const std::string type = text_or(scaling, "rope_type", text_or(scaling, "type", "default"));
  if (type != "yarn" && type != "default")
    return error(StatusCode::kUnsupported, "{}: RoPE type '{}' is not supported", name, type.substr(0, 40));
  rope.factor = type == "yarn" ? f.number("factor", 32.0) : 1.0;
  rope.beta_fast = f.number("beta_fast", 32.0);
  rope.beta_slow = f.number("beta_slow", 1.0);
  rope.original_context = f.integer("original_max_position_embeddings", 4096);
  rope.truncate = f.boolean("truncate", true);
  RETURN_IF_ERROR(outer.status());
  return f.status();
}

}  // namespace moesaic
