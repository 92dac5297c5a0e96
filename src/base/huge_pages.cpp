#include "base/huge_pages.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

namespace moesaic {
namespace {

constexpr const char* kPolicy = "/sys/kernel/mm/transparent_hugepage/enabled";
// Less than this share: what the kernel refused is worth a word. The ends of buffers are always small pages.
constexpr double kGranted = 0.9;

// "always [madvise] never": the one in brackets.
std::string read_policy(const std::string& root) {
  std::ifstream in(root + kPolicy);
  std::string word;
  while (in >> word && word.size() < 64) {
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  }
  return "";
}

double kilobytes(const std::string& line) {
  return std::strtod(line.c_str() + line.find(':') + 1, nullptr) * 1024;
}

}  // namespace

HugePages read_huge_pages(const std::string& root) {
  HugePages pages{.policy = read_policy(root)};
  std::ifstream in(root + "/proc/self/smaps");
  double resident = 0, huge = 0;  // for the mapping that is being read; its flags come last
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Rss:")) resident = kilobytes(line);
    if (line.starts_with("AnonHugePages:")) huge = kilobytes(line);
    if (!line.starts_with("VmFlags:")) continue;
    if ((line + ' ').find(" hg ") != std::string::npos) pages.resident += resident, pages.huge += huge;
    resident = huge = 0;
  }
  return pages;
}

std::string describe(const HugePages& pages) {
  if (pages.policy.empty()) return "not granted: this kernel has no transparent huge pages";
  if (pages.policy == "never" && pages.huge < kGranted * pages.resident)
    return fmt::format("not granted: {} is never", kPolicy);
  if (pages.resident == 0) return "none asked for: nothing in memory is larger than one";
  const bool large = pages.resident >= 1e9;
  const double unit = large ? 1e9 : 1e6;
  std::string share =
      fmt::format("{:.1f} of {:.1f} {}", pages.huge / unit, pages.resident / unit, large ? "GB" : "MB");
  if (pages.huge >= kGranted * pages.resident) return share;
  return share + "; the kernel found no free ones for the rest";
}

}  // namespace moesaic
