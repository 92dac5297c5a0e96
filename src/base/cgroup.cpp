#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>
#include <vector>

namespace moesaic {
namespace {

constexpr int kMostLines = 1 << 14;  // lines of /proc/self/mountinfo

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; lines.size() < kMostLines && std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words(const std::string& line, char separator) {
  std::vector<std::string> out;
  std::istringstream in(line);
  for (std::string word; std::getline(in, word, separator);) out.push_back(word);
  return out;
}

bool has_word(const std::string& list, std::string_view word) {
  for (const std::string& w : words(list, ',')) {
    if (w == word) return true;
  }
  return false;
}

// mountinfo writes a space as \040.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// A hierarchy as it is mounted: `root` is the group that stands at `point`.
struct Mount {
  std::string root, point;
};

struct Hierarchies {
  std::optional<Mount> v1, v2;  // v1: the one with the controller
};

// "36 35 98:0 /root /point options tags - type source options"
Hierarchies mounts(const std::string& root, std::string_view controller) {
  Hierarchies found;
  for (const std::string& line : read_lines(root + "/proc/self/mountinfo")) {
    const std::vector<std::string> w = words(line, ' ');
    size_t dash = 6;
    while (dash < w.size() && w[dash] != "-") ++dash;
    if (dash + 3 >= w.size()) continue;
    const Mount mount{unescape(w[3]), unescape(w[4])};
    if (w[dash + 1] == "cgroup2" && !found.v2) found.v2 = mount;
    if (w[dash + 1] == "cgroup" && has_word(w[dash + 3], controller) && !found.v1) found.v1 = mount;
  }
  return found;
}

// The process's group in the hierarchy: from "0::/path" (v2) or "4:cpu,cpuacct:/path" (v1).
std::optional<std::string> group_of(const std::string& root, bool v2, std::string_view controller) {
  for (const std::string& line : read_lines(root + "/proc/self/cgroup")) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? line.starts_with("0::") : has_word(controllers, controller)) return line.substr(second + 1);
  }
  return {};
}

// The group's path below the mount point; "" where the mount shows no way from one to the other, as in
// containers that see another namespace's paths.
std::string below(const std::string& group, const std::string& mount_root) {
  const std::string base = mount_root == "/" ? "" : mount_root;
  if (!group.starts_with(base) || (group.size() > base.size() && group[base.size()] != '/')) return "";
  std::string path = group.substr(base.size());
  while (path.ends_with('/')) path.pop_back();
  for (const std::string& name : words(path, '/')) {
    if (name == "..") return "";
  }
  return path;
}

double read_number(std::istream& in) {
  double value = 0;
  return in >> value ? value : 0;
}

// v2 has both in one file: "150000 100000" or "max 100000".
double cpu_quota(const std::string& folder, bool v2) {
  std::ifstream in(folder + (v2 ? "/cpu.max" : "/cpu.cfs_quota_us")),
      period_in(folder + "/cpu.cfs_period_us");
  const double quota = read_number(in), period = read_number(v2 ? in : period_in);
  return quota > 0 && period > 0 ? quota / period : 0;
}

// Bytes; 0 where there is no limit. v1 writes one near 2^63 for none.
double read_limit(const std::string& path) {
  constexpr double kNone = 1e18;
  std::ifstream in(path);
  const double bytes = read_number(in);
  return bytes < kNone ? bytes : 0;
}

// Bytes of pages that the kernel drops when it needs the room: those of files.
double reclaimable(const std::string& folder, std::string_view prefix) {
  constexpr std::string_view kCounts[] = {"active_file", "inactive_file", "slab_reclaimable"};
  double bytes = 0;
  for (const std::string& line : read_lines(folder + "/memory.stat")) {
    const std::vector<std::string> w = words(line, ' ');
    if (w.size() != 2 || !w[0].starts_with(prefix)) continue;
    const std::string_view name = std::string_view(w[0]).substr(prefix.size());
    std::istringstream number(w[1]);
    if (std::ranges::find(kCounts, name) != std::end(kCounts)) bytes += read_number(number);
  }
  return bytes;
}

// A group of v2 may have two limits. The kernel throttles processes above memory.high, so much that they
// hardly go on where it finds nothing to reclaim.
double least_limit(const std::string& folder, bool v2) {
  if (!v2) return read_limit(folder + "/memory.limit_in_bytes");
  const double most = read_limit(folder + "/memory.max"), high = read_limit(folder + "/memory.high");
  return most > 0 && high > 0 ? std::min(most, high) : std::max(most, high);
}

std::optional<MemoryLimit> memory_limit(const std::string& folder, bool v2) {
  const double limit = least_limit(folder, v2);
  std::ifstream in(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  const double used = read_number(in) - reclaimable(folder, v2 ? "" : "total_");
  if (limit <= 0) return {};
  return MemoryLimit{limit, std::clamp(limit - used, 0.0, limit)};
}

using Visit = std::function<void(const std::string& folder, bool v2)>;

// The process's group and all above it that can be seen.
void visit_up(const std::string& root, const Mount& mount, const std::string& group, bool v2,
              const Visit& visit) {
  const std::string top = root + mount.point;
  for (std::string folder = top + below(group, mount.root);; folder.resize(folder.rfind('/'))) {
    visit(folder, v2);
    if (folder.size() <= top.size()) return;
  }
}

void visit_groups(const std::string& root, std::string_view controller, const Visit& visit) {
  const Hierarchies mounted = mounts(root, controller);
  if (mounted.v2) visit_up(root, *mounted.v2, group_of(root, true, controller).value_or("/"), true, visit);
  if (mounted.v1) visit_up(root, *mounted.v1, group_of(root, false, controller).value_or("/"), false, visit);
}

}  // namespace

std::optional<double> cgroup_cpu_quota(const std::string& root) {
  std::optional<double> least;
  visit_groups(root, "cpu", [&](const std::string& folder, bool v2) {
    const double quota = cpu_quota(folder, v2);
    if (quota > 0 && (!least || quota < *least)) least = quota;
  });
  return least;
}

std::optional<MemoryLimit> cgroup_memory(const std::string& root) {
  std::optional<MemoryLimit> least;
  visit_groups(root, "memory", [&](const std::string& folder, bool v2) {
    const auto here = memory_limit(folder, v2);
    if (!here) return;
    if (!least) least = here;
    least = MemoryLimit{std::min(least->limit, here->limit), std::min(least->available, here->available)};
  });
  return least;
}

}  // namespace moesaic
