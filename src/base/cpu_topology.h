// The processors that this process may use, as Linux describes them: affinity, cgroup quota, cores and their
// SMT siblings, NUMA nodes, caches. And from that, how many threads compute and on which nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct CpuCore {
  std::vector<int> cpus;  // usable CPUs of this core, ascending: several with SMT
  bool small = false;     // an efficiency core beside faster ones
};

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // usable ones, ascending
  int cores = 0;          // with at least one usable CPU
};

struct CpuCache {
  int64_t bytes = 0;  // one cache's; 0: unknown
  int count = 0;      // serving the usable CPUs
};

struct CpuTopology {
  std::string model;            // as /proc/cpuinfo names it; empty: unknown
  int online = 1;               // CPUs of the machine
  std::vector<int> usable;      // the affinity mask, ascending; never empty
  std::vector<CpuCore> cores;   // never empty
  std::vector<NumaNode> nodes;  // those with usable CPUs; never empty
  std::optional<double> quota;  // CPUs that the cgroup grants at a time: 1.5
  CpuCache l2, l3;

  bool smt() const { return usable.size() > cores.size(); }
  int small_cores() const;
};

// The numbers of a list as the kernel writes it, "0-3,8,10-11"; nothing if it is malformed.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

// CPUs that the calling thread may run on; never empty.
std::vector<int> current_affinity();

// The topology that /sys and /proc under `root` describe. The simplest assumption replaces whatever is
// missing or malformed there: every CPU of the mask is a core of its own, all are on one node, there is no
// quota.
CpuTopology read_cpu_topology(const std::string& root, std::vector<int> affinity);
inline CpuTopology read_cpu_topology() { return read_cpu_topology("", current_affinity()); }

// The threads that compute, and the memory that each is near to.
struct ThreadPlan {
  struct Node {
    int id = 0;
    std::vector<int> cpus;
    int threads = 0;  // at least 1
  };
  int threads = 1;
  int cpus = 1;  // CPUs that may run at a time: with more threads than that, waiting threads must not spin
  bool pin = false;      // each thread stays on its node's CPUs
  int64_t l2_bytes = 0;  // a thread's share of the second caches; 0: unknown
  std::vector<Node>
      nodes;           // threads of the first node first; a single one unless several have memory to read
  std::string reason;  // why so many threads: "one per core"
};

// wanted: 0 for one thread per core, at most what the quota grants, rounded down: a thread that is stopped
// when the quota is used up holds up all others. pin: on machines with several nodes.
ThreadPlan plan_threads(const CpuTopology& topology, int wanted, bool pin);

// The calling thread, and those that it starts from now on, run on these CPUs. Where the system refuses, they
// run anywhere.
void run_on(const std::vector<int>& cpus);
// The same on a node's CPUs, and the memory that they are the first to use is that node's while it has any.
void stay_on(const ThreadPlan::Node& node);

// Lines that tell people what was found and planned.
std::vector<std::string> describe(const CpuTopology& topology, const ThreadPlan& plan);

}  // namespace moesaic
