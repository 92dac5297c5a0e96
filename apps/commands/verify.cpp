#include "model/verify.h"

#include <fmt/format.h>

#include "base/error.h"
#include "commands.h"
#include "model_options.h"
#include "option_checks.h"

namespace moesaic::app {
namespace {

struct VerifyArguments {
  ModelOptions model;
  bool quick = false;
  int tokens = 16;
};

void print_case(const VerifyCase& v) {
  fmt::print("{:<4} {:<14} {:<52} error {:.2e}, tolerance {:.2e}\n", v.ok ? "ok" : "FAIL", v.op, v.shape,
             v.error, v.tolerance);
  std::fflush(stdout);
}

Status run_verify(const VerifyArguments& o) {
  if (o.model.model.empty() && !o.model.lora.empty()) return usage(invalid("--lora needs a --model"));
  ASSIGN_OR_RETURN(const KvFormat kv, kv_format(o.model.kv_dtype));
  ASSIGN_OR_RETURN(const std::optional<Format> dense, dense_format(o.model.dense));
  const BackendFactory factory = [&] { return make_backend(o.model, 512); };
  ModelOptions stored = o.model, same = o.model;
  stored.dense = same.dense = "keep", same.batch_invariant = true;
  VerifyOptions options{
      .quick = o.quick, .kv = kv, .report = print_case, .invariant = [&] { return make_backend(same, 512); }};
  ASSIGN_OR_RETURN(std::vector<VerifyCase> cases,
                   verify_ops([&] { return make_backend(stored, 512); }, options));
  options.dense = dense;
  if (dense) {
    ASSIGN_OR_RETURN(const std::vector<VerifyCase> converted, verify_ops(factory, options));
    cases.insert(cases.end(), converted.begin(), converted.end());
  }
  if (!o.model.model.empty()) {
    ASSIGN_OR_RETURN(const Checkpoint c, open_model(o.model));
    ASSIGN_OR_RETURN(const VerifyCase whole,
                     verify_model(c.config, c.weights, factory, o.tokens, {.kv = kv, .dense = dense}));
    print_case(whole);
    cases.push_back(whole);
  }
  size_t failed = 0;
  for (const VerifyCase& v : cases) failed += v.ok ? 0 : 1;
  fmt::print("{} of {} cases agree with the reference\n", cases.size() - failed, cases.size());
  return failed == 0 ? Status()
                     : error(StatusCode::kInternal, "verify: {} cases differ from the reference", failed);
}

}  // namespace

Run add_verify(CLI::App& app) {
  auto o = std::make_shared<VerifyArguments>();
  CLI::App& c = *app.add_subcommand(
      "verify", "Compare every operation of a device with the double-precision reference");
  o->model.add_to(c);
  c.get_option("--model")->required(false);
  c.add_flag("--quick", o->quick, "small shapes only");
  c.add_option("--tokens", o->tokens, "random tokens of the whole model's check (with -m)")
      ->check(in_range(1, 4096))
      ->capture_default_str();
  c.footer(
      "Examples:\n"
      "  moesaic verify --quick\n"
      "  moesaic verify -m gpt-oss-20b --device cuda");
  return [o] { return run_verify(*o); };
}

}  // namespace moesaic::app
