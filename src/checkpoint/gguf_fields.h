// Values of GGUF's metadata by key. The first that is of another type or out of range is kept as an error, so
// that callers read as a list of keys.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "core/model_config.h"

namespace moesaic {

class GgufFields {
 public:
  GgufFields(const GgufFile& file, std::string name) : file_(file), name_(std::move(name)) {}
  const Status& status() const { return status_; }

  double number(const std::string& key, double fallback) {
    if (const auto* i = file_.get<int64_t>(key)) return static_cast<double>(*i);
    if (const auto* d = file_.get<double>(key)) return *d;
    if (has(key)) fail(invalid("{}: metadata '{}' is not a number", name_, key));
    return fallback;
  }
  int integer(const std::string& key) {
    if (!has(key)) fail(invalid("{}: metadata '{}' is missing", name_, key));
    return integer(key, 0);
  }
  int integer(const std::string& key, int fallback) {
    const double value = number(key, fallback);
    if (!(value >= -1 && value <= 1 << 30))  // a NaN too
      fail(invalid("{}: metadata '{}' is out of range", name_, key));
    return status_.ok() ? static_cast<int>(value) : 0;
  }
  bool boolean(const std::string& key, bool fallback) {
    if (const auto* b = file_.get<bool>(key)) return *b;
    if (has(key)) fail(invalid("{}: metadata '{}' is neither true nor false", name_, key));
    return fallback;
  }
  bool has(const std::string& key) const { return file_.metadata.contains(key); }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  std::string text(const std::string& key) const {
    const auto* value = file_.get<std::string>(key);
    return value != nullptr ? *value : std::string();
  }

 private:
  const GgufFile& file_;
  std::string name_;
  Status status_;
};

// rope.scaling.* behind a prefix, as YaRN or none at all. ollama: its own converter names no type, it is
// always YaRN. context: of the model.
void read_gguf_scaling(GgufFields& f, const std::string& prefix, bool ollama, const std::string& name,
                       int context, RopeConfig& rope);

// Fails with the first key behind the prefix that is neither in every kind of file nor among this kind's own,
// and says something other than what a model of this config always does.
Status check_metadata(const GgufFile& file, const std::string& prefix, std::span<const char* const> own,
                      const ModelConfig& c, const std::string& name);

}  // namespace moesaic
