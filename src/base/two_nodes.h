// For tests: the files of /sys of a machine whose CPUs 0 and 1 are a NUMA node each.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/cpu_topology.h"
#include "base/temporary_folder.h"

namespace moesaic {

class TwoNodes {
 public:
  TwoNodes() {
    write("cpu/online", "0-1");
    write("node/online", "0-1");
    write("node/node0/cpulist", "0");
    write("node/node1/cpulist", "1");
  }
  const std::string& root() const { return folder_.path(); }
  // True if this process may run on both CPUs.
  static bool usable() {
    const std::vector<int> cpus = current_affinity();
    return std::ranges::binary_search(cpus, 0) && std::ranges::binary_search(cpus, 1);
  }

 private:
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(root()) / "sys/devices/system" / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  TemporaryFolder folder_;
};

}  // namespace moesaic
