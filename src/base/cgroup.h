// Limits of this process's control groups.
#pragma once

#include <optional>
#include <string>

namespace moesaic {

// CPUs that may run at a time, the least of cpu.max (v2) or cpu.cfs_quota_us (v1) of the process's group and
// of all above it that can be seen. Nothing where none is limited or nothing is known. root: the folder that
// holds proc and sys, "" for the machine's.
std::optional<double> cgroup_cpu_quota(const std::string& root);

struct MemoryLimit {
  double limit = 0, available = 0;  // bytes; available: pages of files count as free
};
// The least limit of the same groups: memory.max and memory.high (v2) or memory.limit_in_bytes (v1).
std::optional<MemoryLimit> cgroup_memory(const std::string& root);

}  // namespace moesaic
