#include "step_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ceiling.h"

namespace moesaic::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kProcess = 1;  // viewers take 0 for the idle task

int thread_of(int rank) { return rank + 1; }

double begin_of(const std::vector<OpSpan>& spans) {
  return std::ranges::min_element(spans, {}, &OpSpan::begin)->begin;
}

// Names a process or a thread.
Json named(const char* what, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", thread}, {"args", {{"name", name}}}};
}

Json args_of(const OpSpan& span, const StepTrace& t) {
  Json args;
  if (span.layer >= 0) args["layer"] = span.layer;
  args["bytes"] = span.bytes, args["flops"] = span.flops;
  if (span.seconds > 0) args["gb_s"] = span.bytes / span.seconds / 1e9;
  if (t.ceiling_gb_s > 0 && span.seconds > 0) {
    const double floor = ceiling_of(span.op, t.ceiling_gb_s * 1e9, t.caps).seconds(span.bytes, span.flops);
    args["roofline_us"] = floor * 1e6, args["roofline_share"] = floor / span.seconds;
  }
  const auto op = std::ranges::find(t.ops, span.op, &OpProfile::op);
  if (op != t.ops.end() && !op->kernels.empty()) args["kernels"] = op->kernels;
  return args;
}

}  // namespace

double seconds_of(const std::vector<OpSpan>& spans) {
  double end = 0;
  for (const OpSpan& span : spans) end = std::max(end, span.begin + span.seconds);
  return spans.empty() ? 0 : end - begin_of(spans);
}

std::vector<OpSpan> median_step(std::vector<std::vector<OpSpan>> steps) {
  const auto middle = steps.begin() + std::ssize(steps) / 2;
  std::ranges::nth_element(steps, middle, {}, seconds_of);
  return std::move(*middle);
}

Json trace_json(const StepTrace& t) {
  // GCC and clang disagree about braces around one value.
  Json events = Json::array();
  events.push_back(named("process_name", 0,
                         fmt::format("{} on {}, a step of {} token{} at depth {}", t.model, t.caps.name,
                                     t.rows, t.rows == 1 ? "" : "s", t.depth)));
  std::set<int> ranks;
  for (const OpSpan& span : t.spans) ranks.insert(span.rank);
  for (const int rank : ranks)
    events.push_back(named("thread_name", thread_of(rank), fmt::format("rank {}", rank)));
  const double begin = begin_of(t.spans);
  for (const OpSpan& span : t.spans)
    events.push_back({{"name", span.op},
                      {"cat", "operation"},
                      {"ph", "X"},
                      {"ts", (span.begin - begin) * 1e6},
                      {"dur", span.seconds * 1e6},
                      {"pid", kProcess},
                      {"tid", thread_of(span.rank)},
                      {"args", args_of(span, t)}});
  return {{"displayTimeUnit", "ns"},
          {"otherData",
           {{"model", t.model},
            {"device", t.caps.name},
            {"rows", t.rows},
            {"depth", t.depth},
            {"steps", t.steps},
            {"ceiling_gb_s", t.ceiling_gb_s},
            {"peak_tflop_s", t.caps.peak_flops / 1e12}}},
          {"traceEvents", std::move(events)}};
}

}  // namespace moesaic::app
