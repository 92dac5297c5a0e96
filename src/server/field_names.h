// Names that the log has had once.
#pragma once

#include <mutex>
#include <set>
#include <string>

namespace moesaic::server {

// Any thread may use it. Keeps so many names that no client can fill the memory or the log.
class FieldNames {
 public:
  static constexpr size_t kMost = 256;

  // True the first time, until kMost names are known.
  bool is_new(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return names_.size() < kMost && names_.insert(name).second;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

}  // namespace moesaic::server
