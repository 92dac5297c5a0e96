#include "base/memory.h"

#include <fstream>
#include <limits>
#include <string>

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

}  // namespace

double available_host_memory() { return meminfo("MemAvailable:"); }
double total_host_memory() { return meminfo("MemTotal:"); }

}  // namespace moesaic
