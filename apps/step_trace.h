// The operations of one step in the Trace Event Format, for chrome://tracing and ui.perfetto.dev: `profile -o
// trace` prints them. The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/profiling.h"

namespace moesaic::app {

struct StepTrace {
  std::string model;
  BackendCaps caps;
  int rows = 0, depth = 0;
  int steps = 0;               // were measured; this one took the median time
  double ceiling_gb_s = 0;     // 0: unknown
  std::vector<OpSpan> spans;   // not empty
  std::vector<OpProfile> ops;  // their kernels
};

// Seconds from the first operation's begin to the last one's end.
double seconds_of(const std::vector<OpSpan>& spans);

// The step of middle duration. steps: not empty.
std::vector<OpSpan> median_step(std::vector<std::vector<OpSpan>> steps);

// A JSON object. Times are microseconds since the first operation began; ranks are threads.
nlohmann::ordered_json trace_json(const StepTrace& trace);

}  // namespace moesaic::app
