// Limits of this process's control groups.
#pragma once

#include <optional>
#include <string>

namespace moesaic {

// CPUs that may run at a time, the least of cpu.max (v2) or cpu.cfs_quota_us (v1) of the process's group and
// of all above it that can be seen. Nothing where none is limited or nothing is known. root: the folder that
// holds proc and sys, "" for the machine's.
std::optional<double> cgroup_cpu_quota(const std::string& root);

}  // namespace moesaic
