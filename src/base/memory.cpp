#include "base/memory.h"

#include <fstream>
#include <limits>
#include <string>

namespace moesaic {

double available_host_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  for (double kilobytes = 0; in >> key >> kilobytes; in.ignore(64, '\n')) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace moesaic
