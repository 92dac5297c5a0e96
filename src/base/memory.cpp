#include "base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/cgroup.h"

namespace moesaic {

namespace {

double meminfo(const char* wanted) {
  std::ifstream in("/proc/meminfo");
  std::string key;
  for (double kilobytes = 0; in >> key >> kilobytes; in.ignore(64, '\n')) {
    if (key == wanted) return kilobytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

// Bytes of address space that are left under ulimit -v.
double available_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<double>::infinity();
  std::ifstream in("/proc/self/statm");
  double pages = 0;
  in >> pages;
  return std::max(0.0, static_cast<double>(limit.rlim_cur) - pages * static_cast<double>(getpagesize()));
}

}  // namespace

double available_host_memory() {
  const double machine = std::min(meminfo("MemAvailable:"), available_address_space());
  const auto group = cgroup_memory("");
  return group ? std::min(machine, group->available) : machine;
}

double total_host_memory() {
  const auto group = cgroup_memory("");
  return group ? std::min(meminfo("MemTotal:"), group->limit) : meminfo("MemTotal:");
}

}  // namespace moesaic
