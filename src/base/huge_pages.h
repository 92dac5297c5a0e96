// Counts the huge pages that the kernel granted to Buffer.
#pragma once

#include <string>

namespace moesaic {

struct HugePages {
  double resident = 0, huge = 0;  // bytes in memory of what asked for huge pages, and those that lie in them
  std::string policy;             // always, madvise or never; empty: this kernel has none
};

// Reads /proc and /sys under `root` for this process. The kernel walks its page tables: some milliseconds for
// a model in huge pages, a tenth of a second in small ones.
HugePages read_huge_pages(const std::string& root = "");

// "11.9 of 12.0 GB", "not granted: /sys/kernel/mm/transparent_hugepage/enabled is never"
std::string describe(const HugePages& pages);

}  // namespace moesaic
