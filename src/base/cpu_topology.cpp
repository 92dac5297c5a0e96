#include "base/cpu_topology.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/cgroup.h"
#include "base/strings.h"

namespace moesaic {
namespace {

constexpr int kMostCpus = 1 << 16;  // Linux is built for 8192 at most
// A core whose speed is below this share of the fastest one's is small. Favoured cores of one kind differ by
// less (5.1 and 5.7 GHz), efficiency cores by more (Alder Lake 0.75, Zen 5c 0.65, Cortex-A725 0.7).
constexpr double kSmallCore = 0.8;

// The first line of a file that holds no more; empty if there is none.
std::string read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line(size_t{1} << 14, '\0');
  in.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<size_t>(in.gcount()));
  return line.substr(0, line.find('\n'));
}

std::optional<int64_t> parse_number(std::string_view text) {
  const std::optional<int64_t> value = number_of<int64_t>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

std::vector<int> intersection(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both;
}

bool contains(const std::vector<int>& sorted, int cpu) { return std::ranges::binary_search(sorted, cpu); }

// The folders of /sys/devices/system under one root.
class Sys {
 public:
  explicit Sys(std::string root) : root_(std::move(root)) {}
  std::vector<int> list(const std::string& name) const {
    return parse_cpu_list(read_line(root_ + "/sys/devices/" + name)).value_or(std::vector<int>());
  }
  std::string cpu_line(int cpu, const char* name) const {
    return read_line(fmt::format("{}/sys/devices/system/cpu/cpu{}/{}", root_, cpu, name));
  }
  std::vector<int> cpu_list(int cpu, const char* name) const {
    return parse_cpu_list(cpu_line(cpu, name)).value_or(std::vector<int>());
  }
  int64_t cpu_number(int cpu, const char* name) const {
    return parse_number(cpu_line(cpu, name)).value_or(0);
  }

 private:
  std::string root_;
};

std::string model_name(const std::string& root) {
  std::ifstream in(root + "/proc/cpuinfo");
  std::string implementer, part, line;
  for (int lines = 0; lines < 64 && std::getline(in, line) && line.size() < 4096; ++lines) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) return line.substr(colon + 2);
    if (line.starts_with("CPU implementer")) implementer = line.substr(colon + 2);
    if (line.starts_with("CPU part")) part = line.substr(colon + 2);
  }
  return part.empty() ? "" : fmt::format("implementer {}, part {}", implementer, part);
}

// Siblings are those that both files and every one of them agree on; a CPU is in one core only.
std::vector<CpuCore> read_cores(const Sys& sys, const std::vector<int>& usable) {
  std::vector<CpuCore> cores;
  std::set<int> placed;
  for (const int cpu : usable) {
    if (placed.contains(cpu)) continue;
    std::vector<int> siblings = sys.cpu_list(cpu, "topology/core_cpus_list");
    if (!contains(siblings, cpu)) siblings = sys.cpu_list(cpu, "topology/thread_siblings_list");
    siblings = intersection(siblings, usable);
    std::erase_if(siblings, [&](int s) { return placed.contains(s); });
    if (!contains(siblings, cpu)) siblings = {cpu};
    placed.insert(siblings.begin(), siblings.end());
    cores.push_back({siblings});
  }
  return cores;
}

// Speeds on one scale: Arm's (and newer kernels') capacity, else the highest frequency.
void mark_small_cores(const Sys& sys, std::vector<CpuCore>& cores) {
  const std::vector<int> big = sys.list("cpu_core/cpus"), atom = sys.list("cpu_atom/cpus");
  if (!big.empty() && !atom.empty()) {  // Intel's hybrids say it themselves
    for (CpuCore& c : cores) c.small = contains(atom, c.cpus[0]);
    return;
  }
  for (const char* file : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    std::vector<int64_t> speeds;
    for (const CpuCore& c : cores) speeds.push_back(sys.cpu_number(c.cpus[0], file));
    const auto [slowest, fastest] = std::ranges::minmax_element(speeds);
    if (*slowest == 0 || *slowest == *fastest) continue;
    const double limit = kSmallCore * static_cast<double>(*fastest);
    for (size_t i = 0; i < cores.size(); ++i) cores[i].small = static_cast<double>(speeds[i]) < limit;
    return;
  }
}

std::vector<NumaNode> read_nodes(const Sys& sys, const CpuTopology& t) {
  std::vector<NumaNode> nodes;
  std::vector<int> rest = t.usable;
  for (const int id : sys.list("system/node/online")) {
    const std::vector<int> cpus = intersection(sys.list(fmt::format("system/node/node{}/cpulist", id)), rest);
    if (cpus.empty()) continue;  // memory alone, or not for this process
    std::vector<int> left;
    std::ranges::set_difference(rest, cpus, std::back_inserter(left));
    rest = left;
    nodes.push_back({.id = id, .cpus = cpus});
  }
  if (!rest.empty()) nodes = {{.id = 0, .cpus = t.usable}};  // not every CPU has its node: nothing to rely on
  for (NumaNode& node : nodes) {
    node.cores = static_cast<int>(
        std::ranges::count_if(t.cores, [&](const CpuCore& c) { return contains(node.cpus, c.cpus[0]); }));
  }
  // Siblings on different nodes are no siblings.
  if (std::ranges::any_of(nodes, [](const NumaNode& n) { return n.cores == 0; }))
    nodes = {{.id = 0, .cpus = t.usable, .cores = static_cast<int>(t.cores.size())}};
  return nodes;
}

// "2048K", "32M"
int64_t parse_size(std::string_view text) {
  if (text.empty()) return 0;
  const int64_t unit = text.back() == 'K' ? 1 << 10 : text.back() == 'M' ? 1 << 20 : 1;
  if (unit > 1) text.remove_suffix(1);
  const int64_t number = parse_number(text).value_or(0);
  return number < int64_t{1} << 31 ? number * unit : 0;
}

void read_caches(const Sys& sys, CpuTopology& t) {
  std::map<int, std::set<std::vector<int>>> served;  // by level: the CPUs of each cache
  std::map<int, int64_t> bytes;
  for (const CpuCore& core : t.cores) {
    for (int index = 0; index < 5; ++index) {
      const std::string folder = fmt::format("cache/index{}/", index);
      const auto read = [&](const char* name) { return sys.cpu_line(core.cpus[0], (folder + name).c_str()); };
      const int level = static_cast<int>(parse_number(read("level")).value_or(0) & 15);
      if (level < 2 || level > 3 || read("type") == "Instruction") continue;
      served[level].insert(sys.cpu_list(core.cpus[0], (folder + "shared_cpu_list").c_str()));
      bytes[level] = std::max(bytes[level], parse_size(read("size")));
    }
  }
  t.l2 = {bytes[2], static_cast<int>(served[2].size())};
  t.l3 = {bytes[3], static_cast<int>(served[3].size())};
}

std::string size_text(int64_t bytes) {
  return bytes >= 1 << 20 ? fmt::format("{:g} MB", static_cast<double>(bytes) / (1 << 20))
                          : fmt::format("{} KB", bytes >> 10);
}

// "0-3,8", as the kernel writes it.
std::string list_text(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0, end = 0; i < cpus.size(); i = end) {
    for (end = i + 1; end < cpus.size() && cpus[end] == cpus[end - 1] + 1;) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (end > i + 1) text += fmt::format("-{}", cpus[end - 1]);
  }
  return text;
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  return fmt::to_string(fmt::join(parts, between));
}

std::string plural(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

int granted(const CpuTopology& t) {
  const int most = static_cast<int>(t.usable.size());
  return t.quota && *t.quota < most ? std::max(1, static_cast<int>(std::floor(*t.quota))) : most;
}

}  // namespace

int CpuTopology::small_cores() const {
  return static_cast<int>(std::ranges::count_if(cores, [](const CpuCore& c) { return c.small; }));
}

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t dash = part.find('-');
    const auto first = parse_number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= kMostCpus) return {};
    if (std::ssize(cpus) > kMostCpus) return {};
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  std::ranges::sort(cpus);
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::vector<int> current_affinity() {
  std::vector<int> cpus;
  // The kernel refuses masks shorter than its own.
  for (int size = CPU_SETSIZE; size <= kMostCpus && cpus.empty(); size *= 2) {
    std::vector<cpu_set_t> set(static_cast<size_t>(size) / CPU_SETSIZE);
    if (sched_getaffinity(0, set.size() * sizeof(cpu_set_t), set.data()) != 0) continue;
    for (int cpu = 0; cpu < size; ++cpu) {
      if (CPU_ISSET_S(cpu, set.size() * sizeof(cpu_set_t), set.data())) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) {
    cpus.resize(static_cast<size_t>(std::clamp<int64_t>(sysconf(_SC_NPROCESSORS_ONLN), 1, kMostCpus)));
    std::iota(cpus.begin(), cpus.end(), 0);
  }
  return cpus;
}

CpuTopology read_cpu_topology(const std::string& root, std::vector<int> affinity) {
  const Sys sys(root);
  CpuTopology t;
  t.model = model_name(root);
  std::ranges::sort(affinity);
  // The affinity leaves out CPUs that are offline. A container's list of those online may number them anew.
  const std::vector<int> online = sys.list("system/cpu/online");
  t.usable = !affinity.empty() ? affinity : !online.empty() ? online : std::vector<int>{0};
  t.online = static_cast<int>(std::max(online.size(), t.usable.size()));
  t.cores = read_cores(sys, t.usable);
  mark_small_cores(sys, t.cores);
  t.nodes = read_nodes(sys, t);
  read_caches(sys, t);
  t.quota = cgroup_cpu_quota(root);
  return t;
}

ThreadPlan plan_threads(const CpuTopology& t, int wanted, bool pin) {
  const int cores = static_cast<int>(t.cores.size()), cpus = granted(t);
  ThreadPlan plan{.threads = wanted > 0 ? wanted : std::min(cores, cpus), .cpus = cpus};
  plan.reason = wanted > 0     ? "as asked for by --threads"
                : cpus < cores ? fmt::format("the cgroup's quota of {:.2f} CPUs, rounded down", *t.quota)
                : t.smt()      ? "one per core: SMT siblings read memory no faster"
                               : "one per core";
  // Nodes get threads by their cores, in order.
  int before = 0;
  for (const NumaNode& node : t.nodes) {
    const auto share = [&](int c) { return static_cast<int>(int64_t{plan.threads} * c / cores); };
    const int threads = share(before + node.cores) - share(before);
    before += node.cores;
    if (threads > 0) plan.nodes.push_back({.id = node.id, .cpus = node.cpus, .threads = threads});
  }
  plan.pin = pin && plan.nodes.size() > 1;
  plan.l2_bytes = t.l2.bytes * t.l2.count / std::max(plan.threads, cores);
  return plan;
}

void run_on(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  std::vector<cpu_set_t> set(static_cast<size_t>(cpus.back()) / CPU_SETSIZE + 1);
  const size_t bytes = set.size() * sizeof(cpu_set_t);
  for (const int cpu : cpus) CPU_SET_S(cpu, bytes, set.data());
  sched_setaffinity(0, bytes, set.data());
}

// Memory that a thread is the first to use is near it anyway, unless the process was started with another
// policy.
void stay_on(const ThreadPlan::Node& node) {
  run_on(node.cpus);
  constexpr int kBits = std::numeric_limits<unsigned long>::digits;
  std::vector<unsigned long> nodes(static_cast<size_t>(node.id) / kBits + 1);
  nodes.back() = 1UL << (node.id % kBits);
  syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), nodes.size() * kBits + 1);
}

std::vector<std::string> describe(const CpuTopology& t, const ThreadPlan& plan) {
  std::vector<std::string> lines;
  const auto add = [&](std::string name, const std::string& text) {
    name.resize(14, ' ');
    lines.push_back(name + text);
  };
  add("CPU", t.model.empty() ? "unknown" : t.model);
  const int small = t.small_cores(), cores = static_cast<int>(t.cores.size());
  add("cores",
      fmt::format("{}{}, {} of {} CPUs usable ({}), {}", cores,
                  small > 0 ? fmt::format(" ({} fast, {} small)", cores - small, small) : "", t.usable.size(),
                  t.online, list_text(t.usable), t.smt() ? "with SMT siblings" : "no SMT siblings"));
  std::vector<std::string> nodes;
  for (const NumaNode& n : t.nodes) nodes.push_back(fmt::format("node {}: CPUs {}", n.id, list_text(n.cpus)));
  add("NUMA nodes", fmt::format("{} ({})", nodes.size(), joined(nodes, "; ")));
  std::vector<std::string> caches;
  for (const auto& [name, cache] : {std::pair("L2", t.l2), std::pair("L3", t.l3)}) {
    if (cache.bytes > 0)
      caches.push_back(fmt::format("{} {} x {}", name, size_text(cache.bytes), cache.count));
  }
  add("caches", caches.empty() ? "unknown" : joined(caches, ", "));
  add("cgroup quota", t.quota ? fmt::format("{:.2f} CPUs", *t.quota) : "none");
  add("threads", fmt::format("{} ({})", plan.threads, plan.reason));
  if (plan.threads > plan.cpus)
    lines.back() += fmt::format("; more than the {} that can run at a time", plural(plan.cpus, "thread"));
  std::vector<std::string> pinned;
  for (const auto& n : plan.nodes) pinned.push_back(fmt::format("{} on node {}", n.threads, n.id));
  add("pinned", plan.pin                ? "to the CPUs of a node: " + joined(pinned, ", ")
                : plan.nodes.size() > 1 ? "no (--cpu-pin off)"
                                        : "no: one NUMA node");
  return lines;
}

}  // namespace moesaic
