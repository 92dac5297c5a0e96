// bench --moe.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "backend/profiling.h"
#include "backend/tuner.h"
#include "base/error.h"
#include "bench.h"
#include "chat/terminal_text.h"
#include "print_json.h"

namespace moesaic::app {
namespace {

constexpr double kSecondsAPoint = 0.25;

struct MoeLine {
  int tokens = 0;
  OpTiming timing, whole;  // from the router's logits on; with norm and router
  double floor = 0;        // seconds
};

// No pass can be shorter: all bytes at the measured bandwidth, or all operations at the peak.
double floor_of(const OpTiming& t, const LoadedModel& m) {
  const double by_bytes = m.ceiling_gb_s > 0 ? t.bytes / m.ceiling_gb_s / 1e9 : 0;
  return std::max(by_bytes, m.caps.experts_flops > 0 ? t.flops / m.caps.experts_flops : 0);
}

void print_moe_header(const BenchOptions& o, const LoadedModel& m) {
  const ModelConfig& c = m.checkpoint.config;
  if (o.format == "csv")
    fmt::print("model,device,tokens,us,us_min,us_max,floor_us,share,gb_s,tflop_s,us_with_router\n");
  if (o.format != "md") return;
  fmt::print(
      "The MoE operator of {} (top {} of {} experts, {} x {}) on {}, from the router's logits on: top-k,\n"
      "both products, combine; and with norm and router. A layer's mean over {} layers in turn, random\n"
      "activations made anew for each pass. Floor: the weights that random routing reaches at {:.0f} GB/s\n"
      "(measured), or the operations at {:.0f} TFLOP/s.\n\n",
      chat::printable_line(o.model.model), c.experts_per_token, c.experts, c.hidden, c.intermediate,
      m.caps.name, c.layers, m.ceiling_gb_s, m.caps.experts_flops / 1e12);
  fmt::print(
      "| tokens | us (median) | min - max | floor us | share of floor | GB/s | TFLOP/s | us with router "
      "| share | kernels |\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
}

void print_md(const MoeLine& l) {
  const std::string kernels = fmt::to_string(fmt::join(l.whole.kernels, "; "));
  fmt::print(
      "| {} | {:.1f} | {:.1f} - {:.1f} | {:.1f} | {:.0f}% | {:.0f} | {:.0f} | {:.1f} | {:.0f}% | {} |\n",
      l.tokens, l.timing.median() * 1e6, l.timing.seconds.front() * 1e6, l.timing.seconds.back() * 1e6,
      l.floor * 1e6, 100 * l.floor / l.timing.median(), l.timing.bytes / l.timing.median() / 1e9,
      l.timing.flops / l.timing.median() / 1e12, l.whole.median() * 1e6, 100 * l.floor / l.whole.median(),
      kernels);
}

void print_csv(const MoeLine& l, const BenchOptions& o, const LoadedModel& m) {
  fmt::print("{},{},{},{:.3f},{:.3f},{:.3f},{:.3f},{:.4f},{:.1f},{:.2f},{:.3f}\n", csv_text(o.model.model),
             csv_text(m.caps.name), l.tokens, l.timing.median() * 1e6, l.timing.seconds.front() * 1e6,
             l.timing.seconds.back() * 1e6, l.floor * 1e6, l.floor / l.timing.median(),
             l.timing.bytes / l.timing.median() / 1e9, l.timing.flops / l.timing.median() / 1e12,
             l.whole.median() * 1e6);
}

nlohmann::ordered_json to_json(const MoeLine& l, const BenchOptions& o, const LoadedModel& m) {
  return {{"model", o.model.model},
          {"device", m.caps.name},
          {"test", "moe"},
          {"tokens", l.tokens},
          {"samples", l.timing.seconds.size()},
          {"us", l.timing.median() * 1e6},
          {"us_min", l.timing.seconds.front() * 1e6},
          {"us_max", l.timing.seconds.back() * 1e6},
          {"us_with_router", l.whole.median() * 1e6},
          {"floor_us", l.floor * 1e6},
          {"share", l.floor / l.timing.median()},
          {"bytes", l.timing.bytes},
          {"flops", l.timing.flops},
          {"ceiling_gb_s", m.ceiling_gb_s},
          {"peak_tflop_s", m.caps.experts_flops / 1e12},
          {"kernels", l.whole.kernels}};
}

}  // namespace

Status run_moe_bench(const BenchOptions& o) {
  const int most = *std::max_element(o.moe.begin(), o.moe.end());
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(o.model, most));
  Tuner* const tuner = m.backend->tuner();
  if (tuner == nullptr || m.backend->device().backend != "cuda")
    return error(StatusCode::kUnsupported,
                 "--moe: only the cuda device times one operation alone; use --device cuda");
  RETURN_IF_ERROR(load(m, {.context = 1, .max_rows = most}));
  measure_ceilings(m);
  JsonArray lines(o.format == "json");
  for (const int tokens : o.moe) {
    MoeLine line{.tokens = tokens};
    std::this_thread::sleep_for(std::chrono::seconds(o.delay));
    ASSIGN_OR_RETURN(line.timing, tuner->time_moe(tokens, kSecondsAPoint, MoeFrom::kLogits));
    ASSIGN_OR_RETURN(line.whole, tuner->time_moe(tokens, kSecondsAPoint, MoeFrom::kRows));
    line.floor = floor_of(line.timing, m);
    if (lines.empty()) print_moe_header(o, m);
    if (o.format == "md") print_md(line);
    if (o.format == "csv") print_csv(line, o, m);
    std::fflush(stdout);
    lines.add(to_json(line, o, m));
  }
  return {};
}

}  // namespace moesaic::app
