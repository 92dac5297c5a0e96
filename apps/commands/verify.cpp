#include "verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "commands.h"
#include "engine/expert_placement.h"
#include "model/verify.h"
#include "model_options.h"
#include "option_checks.h"

namespace moesaic::app {
namespace {

constexpr int kRows = 512;  // rows of a step

void print_case(const VerifyCase& v) {
  fmt::print("{:<4} {:<14} {:<52} error {:.2e}, tolerance {:.2e}\n", v.ok ? "ok" : "FAIL", v.op, v.shape,
             v.error, v.tolerance);
  std::fflush(stdout);
}

// Runs every operation with matrices as they are stored, and once more with those that o.model.dense makes.
Result<std::vector<VerifyCase>> compare_operations(const VerifyArguments& o, VerifyOptions options) {
  ModelOptions stored = o.model, same = o.model;
  stored.dense = same.dense = "keep", same.batch_invariant = true;
  // Streamed and hot experts have bits that depend on the step.
  same.experts = same.experts.substr(0, same.experts.find(','));
  const std::optional<Format> dense = std::exchange(options.dense, std::nullopt);
  options.invariant = [&] { return make_backend(same, kRows); };
  ASSIGN_OR_RETURN(std::vector<VerifyCase> cases,
                   verify_ops([&] { return make_backend(stored, kRows); }, options));
  if (!dense) return cases;
  options.dense = dense;
  ASSIGN_OR_RETURN(const std::vector<VerifyCase> converted,
                   verify_ops([&] { return make_backend(o.model, kRows); }, options));
  cases.insert(cases.end(), converted.begin(), converted.end());
  return cases;
}

}  // namespace

Status run_verify(const VerifyArguments& o) {
  if (o.model.model.empty() && !o.model.lora.empty()) return usage(invalid("--lora needs a --model"));
  ASSIGN_OR_RETURN(const KvFormat kv, kv_format(o.model.kv_dtype));
  ASSIGN_OR_RETURN(const std::optional<Format> dense, dense_format(o.model.dense));
  const VerifyOptions options{
      .quick = o.quick, .ranks = std::max(1, o.model.tp), .kv = kv, .dense = dense, .report = print_case};
  // Before the operations, which take minutes: a wrong name is an error at once.
  Checkpoint c;
  if (!o.model.model.empty()) {
    ASSIGN_OR_RETURN(c, open_model(o.model));
  }
  std::vector<VerifyCase> cases;
  if (o.operations) {
    ASSIGN_OR_RETURN(cases, compare_operations(o, options));
  }
  if (!o.model.model.empty()) {
    const auto factory = [&]() -> Result<std::unique_ptr<Backend>> {
      ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, make_backend(o.model, kRows));
      const KvDemand cache{.context = o.tokens, .max_rows = kRows};
      RETURN_IF_ERROR(place_experts(cache, c.config, c.weights, *backend));
      RETURN_IF_ERROR(plan_memory(cache, c.config, c.weights, *backend));
      return backend;
    };
    ASSIGN_OR_RETURN(cases.emplace_back(), verify_model(c.config, c.weights, factory, o.tokens, options));
  }
  size_t failed = 0;
  for (const VerifyCase& v : cases) failed += v.ok ? 0 : 1;
  fmt::print("{} of {} cases agree with the reference\n", cases.size() - failed, cases.size());
  return failed == 0 ? Status()
                     : error(StatusCode::kInternal, "verify: {} cases differ from the reference", failed);
}

namespace {

// The options that were given, but for the report's own.
std::string options_given(const CLI::App& c) {
  std::string text;
  for (const CLI::Option* o : c.get_options([](const CLI::Option* x) { return x->count() > 0; })) {
    if (!o->check_lname("report")) text += fmt::format(" {}={}", o->get_name(), fmt::join(o->results(), ","));
  }
  return text.empty() ? "none" : text.substr(1);
}

}  // namespace

Run add_verify(CLI::App& app) {
  auto o = std::make_shared<VerifyArguments>();
  auto file = std::make_shared<std::string>();
  CLI::App& c = *app.add_subcommand(
      "verify", "Compare every operation of a device with the double-precision reference");
  o->model.add_to(c);
  c.get_option("--model")->required(false);
  c.add_flag("--quick", o->quick, "small shapes only");
  c.add_option("--tokens", o->tokens, "random tokens of the whole model's check (with -m)")
      ->check(in_range(1, 4096));
  CLI::Option* const report =
      c.add_option("--report", *file,
                   "check and time everything, each part in a process of its own, and print a block of text "
                   "for a bug report or for a card that nobody has tried; FILE gets it as well")
          ->expected(0, 1)
          ->type_name("[FILE]");
  c.footer(
      "Examples:\n"
      "  moesaic verify --quick\n"
      "  moesaic verify --report\n"
      "  moesaic verify -m openai/gpt-oss-20b --device cuda");
  return [o, file, report, &c] {
    if (report->count() == 0) return run_verify(*o);
    if (*file == "-") return usage(invalid("--report: it is printed anyway; name a file, or leave - out"));
    if (c.count("--tokens") > 0) return usage(invalid("--tokens: --report has its own"));
    return run_report({.model = o->model, .quick = o->quick, .file = *file, .given = options_given(c)});
  };
}

}  // namespace moesaic::app
