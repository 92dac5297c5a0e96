#include <fmt/format.h>

#include <algorithm>

#include "backend/profiling.h"
#include "backend/tuner.h"
#include "base/error.h"
#include "commands.h"
#include "model_options.h"
#include "option_checks.h"
#include "tuning/moe_kernels.h"
#include "tuning/tuning_file.h"

namespace moesaic::app {
namespace {

constexpr double kSecondsATile = 0.08;

struct TuneOptions {
  ModelOptions model;
  std::vector<int> tokens = {1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 2048, 4096};
};

Result<TunedStep> measure(Tuner& tuner, int tokens, std::string_view config) {
  ASSIGN_OR_RETURN(const OpTiming t, tuner.time_moe(tokens, kSecondsATile, MoeFrom::kRows, config));
  return TunedStep{tokens, std::string(config), t.median()};
}

// Every kernel that takes so many tokens, the heuristic's choice first.
Result<std::vector<TunedStep>> measure_configs(Tuner& tuner, int tokens) {
  std::vector<TunedStep> all;
  const std::string chosen(tuner.moe_choice(tokens));
  ASSIGN_OR_RETURN(all.emplace_back(), measure(tuner, tokens, chosen));
  for (const MoeKernelConfig& config : tuner.moe_configs()) {
    if (takes(config, tokens) && config.name != chosen) {
      ASSIGN_OR_RETURN(all.emplace_back(), measure(tuner, tokens, config.name));
    }
  }
  return all;
}

void print_line(const std::vector<TunedStep>& all, const TunedStep& best) {
  std::string list;
  for (const TunedStep& w : all)
    list += fmt::format("{}{} {:.1f}", list.empty() ? "" : ", ", w.config, w.seconds * 1e6);
  fmt::print("| {} | {} | {:.1f} | {} | {:.0f}% | {} |\n", best.tokens, best.config, best.seconds * 1e6,
             all[0].config, 100 * (all[0].seconds / best.seconds - 1), list);
  std::fflush(stdout);
}

Status nothing_to_tune(const LoadedModel& m) {
  return error(StatusCode::kUnsupported, "{} has nothing to tune; use --device cuda or cpu",
               m.backend->caps().name);
}

// A device with one kernel for the experts, which can read their weights ahead in several ways.
Status tune_reads(const TuneOptions& o, LoadedModel& m, Tuner& tuner) {
  ASSIGN_OR_RETURN(const ReadTuning t, tuner.tune_reads(o.model.tuning_folder));
  if (t.candidates.empty()) return nothing_to_tune(m);
  fmt::print("{} on {}, GB/s of one token's experts\n\n", o.model.model, m.caps.name);
  fmt::print("| setting | value | best | median | |\n| --- | --- | ---: | ---: | --- |\n");
  for (const ReadTiming& c : t.candidates) {
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {} |\n", c.setting, c.value, c.best_gb_s, c.median_gb_s,
               c.chosen ? "chosen" : "");
  }
  fmt::print("\n{}; the read bandwidth of the machine is {:.2f} GB/s\n", t.chosen,
             read_bandwidth(*m.backend));
  if (t.file.empty())
    fmt::print("not written: the experts fit into the CPU's caches, or the cache folder is not writable\n");
  else
    fmt::print("written to {}\n", t.file);
  return {};
}

Status run_tune(const TuneOptions& o) {
  if (o.model.tp != 1) return usage(invalid("--tp: leave it out; tune measures one rank"));
  const int most = *std::max_element(o.tokens.begin(), o.tokens.end());
  ModelOptions options = o.model;
  options.tuning_folder.clear();  // a new measurement is not compared with an earlier one
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(options, most));
  Tuner* const tuner = m.backend->tuner();
  if (tuner == nullptr) return nothing_to_tune(m);
  RETURN_IF_ERROR(load(m, {.context = 1, .max_rows = most}));
  if (tuner->moe_configs().empty()) return tune_reads(o, m, *tuner);
  fmt::print("{} on {}, us of a layer's experts\n\n", o.model.model, m.caps.name);
  fmt::print(
      "| tokens | best | us | without tuning | behind | all |\n| ---: | --- | ---: | --- | ---: | --- |\n");
  std::vector<TunedStep> steps;
  for (const int tokens : o.tokens) {
    ASSIGN_OR_RETURN(const std::vector<TunedStep> all, measure_configs(*tuner, tokens));
    const TunedStep& best = *std::ranges::min_element(all, {}, &TunedStep::seconds);
    print_line(all, best);
    steps.push_back(best);
  }
  std::ranges::sort(steps, {}, &TunedStep::tokens);
  const TuningKey key = tuner->tuning_key();
  RETURN_IF_ERROR(write_tuning(o.model.tuning_folder, key, steps));
  fmt::print("\nwritten to {}\n", tuning_path(o.model.tuning_folder, key));
  return {};
}

}  // namespace

Run add_tune(CLI::App& app) {
  auto o = std::make_shared<TuneOptions>();
  CLI::App& c = *app.add_subcommand(
      "tune",
      "Measure the experts' kernels (cuda) or how their weights are read ahead (cpu), and keep the fastest");
  o->model.add_to(c);
  c.add_option("--tokens", o->tokens,
               "tokens of the steps to measure; other steps use the nearest one's result")
      ->delimiter(',')
      ->check(in_range(1, 1 << 16));
  c.footer("Example: moesaic tune -m openai/gpt-oss-20b");
  return [o] { return run_tune(*o); };
}

}  // namespace moesaic::app
