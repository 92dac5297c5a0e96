#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "api/draft_parts.h"
#include "backend/profiling.h"
#include "base/error.h"
#include "base/seconds.h"
#include "ceiling.h"
#include "chat/terminal_text.h"
#include "commands.h"
#include "drafted_batch.h"
#include "model_options.h"
#include "option_checks.h"
#include "print_json.h"
#include "random_batch.h"
#include "step_trace.h"

namespace moesaic::app {
namespace {

struct ProfileOptions {
  ModelOptions model;
  std::string speculative = "none", format = "table";
  int rows = 1, depth = 0, steps = 16, draft_tokens = 3;
};

// Steps, and what they read and computed.
struct Steps {
  int count = 0;
  double seconds = 0;  // for one step
  std::vector<OpProfile> ops;
  std::vector<std::vector<OpSpan>> spans;  // one a step, where they are asked for
};

// A step's share of an op that was called in each of them.
OpProfile per_step(const OpProfile& op, int steps) {
  return {.op = op.op,
          .calls = op.calls / steps,
          .seconds = op.seconds / steps,
          .bytes = op.bytes / steps,
          .flops = op.flops / steps,
          .kernels = op.kernels};
}

// least: seconds by the roofline, 0: not known; of_all: the part of the step that gets a bar; 0: none.
void print_line(const OpProfile& op, double least, double of_all = 0) {
  constexpr double kBar = 20;
  const auto length = static_cast<size_t>(std::lround(kBar * of_all));
  const std::string bar = length > 0 ? "  " + std::string(length, '#') : "";
  const double gb_s = op.seconds > 0 ? op.bytes / op.seconds / 1e9 : 0;
  const std::string each =
      op.calls > 0 ? fmt::format("{:.1f}", op.seconds * 1e6 / static_cast<double>(op.calls)) : "";
  const std::string share =
      least > 0 && op.seconds > 0 ? fmt::format("{:.0f}%", 100 * least / op.seconds) : "";
  fmt::print("{:<10}{:>7}{:>11.1f}{:>10}{:>10.4f}{:>10.1f}{:>8}{:>10.2f}{}\n", op.op, op.calls,
             op.seconds * 1e6, each, op.bytes / 1e9, gb_s, share,
             op.seconds > 0 ? op.flops / op.seconds / 1e12 : 0, bar);
}

void print_table(const LoadedModel& m, const Steps& steps, const ProfileOptions& o, double step_seconds) {
  fmt::print("{} on {}, a step of {} token{} at depth {}, {} steps; ceilings {:.1f} GB/s{}\n\n",
             chat::printable_line(o.model.model), m.caps.name, o.rows, o.rows == 1 ? "" : "s", o.depth,
             steps.count, m.ceiling_gb_s,
             m.caps.peak_flops > 0 ? " and " + rate_words(m.caps.peak_flops) : "");
  if (!m.caps.reads.empty()) fmt::print("weights are read with {}\n\n", m.caps.reads);
  fmt::print("{:<10}{:>7}{:>11}{:>10}{:>10}{:>10}{:>8}{:>10}  {}\n", "op", "calls", "us", "us each", "GB",
             "GB/s", "share", "TFLOP/s", "part of the step");
  OpProfile sum{.op = "sum"};
  std::string kernels;
  std::vector<OpProfile> ops;
  for (const OpProfile& all : steps.ops) {
    const OpProfile& op = ops.emplace_back(per_step(all, steps.count));
    sum.seconds += op.seconds, sum.bytes += op.bytes, sum.flops += op.flops;
  }
  const auto least = [&m](const std::vector<OpProfile>& some) {
    return m.ceiling_gb_s > 0 ? roofline_of(some, m.ceiling_gb_s * 1e9, m.caps).seconds : 0;
  };
  for (const OpProfile& op : ops) {
    print_line(op, least({op}), sum.seconds > 0 ? op.seconds / sum.seconds : 0);
    for (const std::string& kernel : op.kernels) kernels += fmt::format("{:<10}{}\n", op.op, kernel);
  }
  print_line(sum, least(ops));
  print_line({.op = "step", .calls = 1, .seconds = step_seconds, .bytes = sum.bytes, .flops = sum.flops},
             least(ops));
  const double gap = step_seconds - sum.seconds;
  fmt::print("the step as it runs takes {:.1f} us ({:.1f}%) {} than its ops one after the other\n",
             std::abs(gap) * 1e6, 100 * std::abs(gap) / sum.seconds, gap > 0 ? "more" : "less");
  if (!kernels.empty()) fmt::print("\nkernels (first launch: thread blocks x threads)\n{}", kernels);
}

void add(std::vector<OpProfile>& sum, const std::vector<OpProfile>& more) {
  for (const OpProfile& op : more) {
    const auto known = std::ranges::find(sum, op.op, &OpProfile::op);
    if (known == sum.end()) {
      sum.push_back(op);
    } else {
      known->calls += op.calls, known->seconds += op.seconds;
      known->bytes += op.bytes, known->flops += op.flops;
    }
  }
}

// Steps that follow one another as those of an answer do. They stay at the stated depth: those that would go
// further than a page beyond it are single.
int steps_at_a_time(const ProfileOptions& o) { return std::clamp(kPageTokens / o.rows, 1, o.steps); }

// Steps from the stated depth on; what leads there is not counted.
Status time_pass(RandomBatch& random, Profiler& profiler, const ProfileOptions& o, Steps& all,
                 std::vector<double>& seconds) {
  const int steps = steps_at_a_time(o);
  RETURN_IF_ERROR(random.restart(o.depth));
  RETURN_IF_ERROR(random.wait());
  profiler.reset_profile();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) {
    RETURN_IF_ERROR(random.append(o.rows, true));
    if (o.format == "trace") all.spans.push_back(profiler.last_step());
  }
  RETURN_IF_ERROR(random.wait());
  seconds.push_back(seconds_since(start) / steps);
  all.count += steps;
  add(all.ops, profiler.profile());
  return {};
}

// At least as many as were asked for, after some that warm up. seconds: the median, as a step whose shape is
// new to a device takes longer.
Result<Steps> time_steps(RandomBatch& random, Profiler& profiler, const ProfileOptions& o) {
  Steps steps, unused;
  std::vector<double> seconds, warm_up;
  RETURN_IF_ERROR(time_pass(random, profiler, o, unused, warm_up));
  while (steps.count < o.steps) RETURN_IF_ERROR(time_pass(random, profiler, o, steps, seconds));
  std::ranges::sort(seconds);
  steps.seconds = seconds[seconds.size() / 2];
  return steps;
}

// Every draft is accepted, so that each round has all of its work.
Status profile_drafts(const ProfileOptions& o, const LoadedModel& m, DraftParts& parts,
                      const EngineOptions& engine) {
  ASSIGN_OR_RETURN(const auto drafter, parts.drafter(*m.backend, engine));
  if (drafter == nullptr) return {};
  ASSIGN_OR_RETURN(
      DraftedBatch batch,
      DraftedBatch::create(*m.backend, m.checkpoint.config,
                           {.max_tokens = engine.context, .max_rows = engine.max_rows}, *drafter));
  RETURN_IF_ERROR(batch.restart(o.depth));
  const std::vector<double> all(static_cast<size_t>(o.draft_tokens), 1.0);
  RETURN_IF_ERROR(batch.step(all));  // the first one warms up
  batch.reset_times();
  for (int i = 0; i < o.steps; ++i) RETURN_IF_ERROR(batch.step(all));
  fmt::print("\n{}, drafts of {} tokens, a round as it runs\n", o.speculative, o.draft_tokens);
  const DraftTimes& t = batch.times();
  for (const auto& [op, seconds] :
       {std::pair("draft", t.draft), std::pair("verify", t.verify), std::pair("roll-back", t.take_back)})
    print_line({.op = op, .calls = 1, .seconds = seconds / t.steps}, 0);
  return {};
}

void print_trace(const LoadedModel& m, Steps steps, const ProfileOptions& o) {
  print_json(trace_json({.model = o.model.model,
                         .caps = m.caps,
                         .rows = o.rows,
                         .depth = o.depth,
                         .steps = steps.count,
                         .ceiling_gb_s = m.ceiling_gb_s,
                         .spans = median_step(std::move(steps.spans)),
                         .ops = std::move(steps.ops)}),
             1);
}

EngineOptions engine_options(const ProfileOptions& o) {
  const int rounds = o.speculative == "none" ? 0 : (o.steps + 2) * (o.draft_tokens + 1);
  return {.context = o.depth + std::max(o.rows * steps_at_a_time(o), rounds),
          .max_rows = std::max(512, o.rows)};
}

Status run_profile(const ProfileOptions& o) {
  if (o.format == "trace" && o.speculative != "none") return usage(invalid("--speculative: -o is table"));
  EngineOptions engine = engine_options(o);
  const int max_rows = engine.max_rows, tokens = engine.context;
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(o.model, max_rows));
  ASSIGN_OR_RETURN(Profiler* const profiler, profiler_of(*m.backend));
  RETURN_IF_ERROR(check_context(tokens, m.checkpoint.config, "depth and steps together"));
  ASSIGN_OR_RETURN(DraftParts parts, DraftParts::open(o.speculative, m.checkpoint));
  ASSIGN_OR_RETURN(engine.draft, parts.plan(*m.backend, m.choice.options, engine));
  RETURN_IF_ERROR(load(m, {.context = tokens, .max_rows = max_rows, .draft = engine.draft}));
  RETURN_IF_ERROR(parts.load(*m.backend, m.checkpoint));
  ASSIGN_OR_RETURN(RandomBatch random, RandomBatch::create(*m.backend, m.checkpoint.config,
                                                           {.max_tokens = tokens, .max_rows = max_rows}));
  measure_ceilings(m);
  // First as steps run, then op by op.
  ASSIGN_OR_RETURN(const Steps as_run, time_steps(random, *profiler, o));
  profiler->time_ops(true);
  ASSIGN_OR_RETURN(Steps by_op, time_steps(random, *profiler, o));
  if (m.caps.threads > 0) m.ceiling_gb_s = std::max(m.ceiling_gb_s, profiler->read_bandwidth());
  profiler->time_ops(false);
  if (o.format == "trace") {
    print_trace(m, std::move(by_op), o);
    return {};
  }
  print_table(m, by_op, o, as_run.seconds);
  return profile_drafts(o, m, parts, engine);
}

}  // namespace

Run add_profile(CLI::App& app) {
  auto o = std::make_shared<ProfileOptions>();
  CLI::App& c = *app.add_subcommand(
      "profile", "Show where a step's time goes: operation by operation, with bytes and share of bandwidth");
  o->model.add_to(c);
  c.add_option("-b,--rows", o->rows, "tokens in the step: 1 is decoding, 512 a prefill chunk")
      ->check(in_range(1, 2048));
  c.add_option("-d,--depth", o->depth, "tokens already in the KV cache")->check(in_range(0, 1 << 20));
  CLI::Option* const drafter = c.add_option("--speculative", o->speculative,
                                            "also time this drafter's drafts, step by step (see run)");
  drafter->check(speculative_error);
  c.add_option("--draft-tokens", o->draft_tokens, "tokens of each draft")
      ->check(in_range(1, kMostDraft))
      ->needs(drafter);
  c.add_option("-n,--steps", o->steps, "steps to average")->check(in_range(1, 1000));
  c.add_option("-o,--output", o->format,
               "table, or trace: the operations of one step, that of the median time, as a file for "
               "chrome://tracing or ui.perfetto.dev. Times are as measured, in us from the step's first "
               "operation on; a GPU runs operations one after the other while they are measured, and of "
               "several GPUs the first one's are shown")
      ->check(one_of({"table", "trace"}));
  c.footer(
      "Examples:\n"
      "  moesaic profile -m openai/gpt-oss-20b -b 1 -d 4096\n"
      "  moesaic profile -m openai/gpt-oss-20b -b 512 -o trace > step.json");
  return [o] { return run_profile(*o); };
}

}  // namespace moesaic::app
