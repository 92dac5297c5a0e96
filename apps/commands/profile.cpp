#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "commands.h"
#include "model_options.h"
#include "random_batch.h"

namespace moesaic::app {
namespace {

struct Options {
  ModelOptions model;
  int rows = 1, depth = 0, steps = 16;
};

void print_table(const LoadedModel& m, const Options& o, double step_seconds) {
  fmt::print("{} on {}, a step of {} token{} at depth {}, mean of {} steps; ceiling {:.1f} GB/s\n\n",
             o.model.model, m.caps.name, o.rows, o.rows == 1 ? "" : "s", o.depth, o.steps, m.ceiling_gb_s);
  fmt::print("{:<10}{:>8}{:>12}{:>12}{:>10}{:>10}{:>12}\n", "op", "calls", "ms", "GB", "GB/s", "share",
             "TFLOP/s");
  double seconds = 0, bytes = 0, flops = 0;
  const auto line = [&](const std::string& name, int64_t calls, double s, double b, double f) {
    const double gb_s = s > 0 ? b / s / 1e9 : 0;
    fmt::print("{:<10}{:>8}{:>12.3f}{:>12.4f}{:>10.1f}{:>9.0f}%{:>12.3f}\n", name, calls, s * 1e3, b / 1e9,
               gb_s, m.ceiling_gb_s > 0 ? 100 * gb_s / m.ceiling_gb_s : 0, s > 0 ? f / s / 1e12 : 0);
  };
  for (const OpProfile& op : m.backend->profile()) {
    line(op.op, op.calls / o.steps, op.seconds / o.steps, op.bytes / o.steps, op.flops / o.steps);
    seconds += op.seconds / o.steps, bytes += op.bytes / o.steps, flops += op.flops / o.steps;
  }
  line("sum", 0, seconds, bytes, flops);
  line("step", 1, step_seconds, bytes, flops);
  fmt::print("gap between the step and its ops: {:.3f} ms ({:.1f}%)\n", (step_seconds - seconds) * 1e3,
             100 * (step_seconds - seconds) / step_seconds);
}

Status run_profile(const Options& o) {
  const int max_rows = std::max(512, o.rows), tokens = o.depth + o.rows * (o.steps + 1);
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(o.model, max_rows));
  RETURN_IF_ERROR(check_context(tokens, m.checkpoint.config, "depth and steps together"));
  RETURN_IF_ERROR(load(m, {.context = tokens, .max_rows = max_rows}));
  ASSIGN_OR_RETURN(RandomBatch random, RandomBatch::create(*m.backend, m.checkpoint.config,
                                                           {.max_tokens = tokens, .max_rows = max_rows}));
  if (o.depth > 0) RETURN_IF_ERROR(random.append(o.depth, false));
  RETURN_IF_ERROR(random.append(o.rows, true));
  m.ceiling_gb_s = m.backend->read_bandwidth();
  m.backend->reset_profile();
  m.backend->time_ops(true);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < o.steps; ++i) RETURN_IF_ERROR(random.append(o.rows, true));
  print_table(m, o,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / o.steps);
  return {};
}

}  // namespace

Run add_profile(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand(
      "profile", "Show where a step's time goes: op by op, with bytes and share of bandwidth");
  o->model.add_to(c);
  c.add_option("-b,--rows", o->rows, "tokens in the step: 1 is decoding, 512 a prefill chunk")
      ->check(CLI::Range(1, 2048))
      ->capture_default_str();
  c.add_option("-d,--depth", o->depth, "tokens in the KV cache before")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  c.add_option("-n,--steps", o->steps, "steps to average")->check(CLI::Range(1, 1000))->capture_default_str();
  return [o] { return run_profile(*o); };
}

}  // namespace moesaic::app
