// The page of `bench -o html`: what was measured, as charts and a table, in one HTML file without anything
// from elsewhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moesaic/status.h"

namespace moesaic::app {

// One test of a run: prompts read, or tokens decoded.
struct BenchPoint {
  bool prefill = false;
  int tokens = 0, depth = 0, batch = 1;
  double tok_s = 0, least = 0,
         most = 0;      // tokens a second of all sequences: the median, the slowest, the fastest
  double roofline = 0;  // tokens a second at the bandwidth that was measured; 0: unknown
};
struct BenchRun {
  std::string name;  // model, device and what else tells it from others
  std::vector<BenchPoint> points;
};

// A run from what `bench -o json` prints, or llama-bench -o json. file: names it, also in errors. At most
// kMostRunBytes.
inline constexpr size_t kMostRunBytes = 16 << 20;
Result<BenchRun> read_bench_run(std::string_view json, const std::string& file);

// The page, with the runs beside each other.
std::string bench_page(const std::vector<BenchRun>& runs);

}  // namespace moesaic::app
