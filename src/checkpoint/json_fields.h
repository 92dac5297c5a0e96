// Typed look-ups in a model's config.json.
#pragma once

#include <string>

#include "base/error.h"
#include "checkpoint/json.h"
#include "core/model_config.h"

namespace moesaic {

// Typed look-ups that remember the first one that failed.
class JsonFields {
 public:
  JsonFields(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}
  const Status& status() const { return status_; }

  // True if the member is there and not null.
  bool has(const char* key) const {
    const auto it = json_.find(key);
    return it != json_.end() && !it->is_null();
  }
  int integer(const char* key, int fallback) { return has(key) ? integer(key) : fallback; }
  int integer(const char* key) {
    const auto it = json_.find(key);
    if (it == json_.end()) return fail(key, "is missing");
    if (!it->is_number_integer() || it->get<int64_t>() < 0 || it->get<int64_t>() > 1 << 30)
      return fail(key, "is not a sensible integer");
    return it->get<int>();
  }
  double number(const char* key, double fallback) {
    const auto it = json_.find(key);
    if (it == json_.end() || it->is_null()) return fallback;
    if (!it->is_number()) return fail(key, "is not a number");
    return it->get<double>();
  }
  bool boolean(const char* key, bool fallback) {
    const auto it = json_.find(key);
    if (it == json_.end() || it->is_null()) return fallback;
    return it->is_boolean() ? it->get<bool>() : fail(key, "is neither true nor false") != 0;
  }
  int fail(const char* key, const char* what) {
    if (status_.ok()) status_ = invalid("{}: '{}' {}", name_, key, what);
    return 0;
  }

 private:
  const Json& json_;
  std::string name_;
  Status status_;
};

// Json::value throws on another type; here that is the fallback's case, or an unknown name's.
inline std::string text_or(const Json& json, const char* key, std::string fallback) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return fallback;
  return it->is_string() ? it->get<std::string>() : it->dump();
}

// rope_scaling (transformers 4, with rope_theta beside it) or rope_parameters (transformers 5, rope_theta
// inside, for all layers or by their type). `rope` holds what is meant where the file names neither. Kinds of
// RoPE other than YaRN's and the plain one are refused, and so is what transformers does not know of them.
Status read_rope(const Json& json, RopeConfig& rope, const std::string& name);

}  // namespace moesaic
