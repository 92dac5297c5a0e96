#include <fmt/format.h>

#include <regex>

#include "backend/warm_up.h"
#include "base/error.h"
#include "commands.h"
#include "option_checks.h"

namespace moesaic::app {
namespace {

// As nvcc names it: from 9.0 on, what the kernels need.
std::string architecture_error(const std::string& name) {
  static const std::regex form("sm_(9|1[0-9])[0-9][af]?");
  return std::regex_match(name, form) ? "" : "expected sm_90a, sm_120a or another one from 9.0 on";
}

struct WarmupOptions {
  std::string architecture;
  int threads = 0;
};

Status run_warmup(const WarmupOptions& o) {
  int compiled = 0, cached = 0;
  const auto report = [&](const WarmKernel& k) {
    fmt::print("{:<8} {:6.2f} s  {}\n", k.cached ? "cached" : "compiled", k.seconds, k.name);
    std::fflush(stdout);
    (k.cached ? cached : compiled) += 1;
  };
  ASSIGN_OR_RETURN(const std::string architecture, warm_up(o.architecture, o.threads, report));
  if (compiled + cached == 0) {
    fmt::print("nothing to compile: this program has machine code for {}\n", architecture);
  } else {
    fmt::print("{}: {} kernels compiled, {} found on disk\n", architecture, compiled, cached);
  }
  return {};
}

}  // namespace

Run add_warmup(CLI::App& app) {
  auto o = std::make_shared<WarmupOptions>();
  CLI::App& c = *app.add_subcommand(
      "warmup", "Compile kernels for a GPU that this program has no machine code for, and keep them on disk");
  c.add_option(
       "--architecture", o->architecture,
       "architecture to compile for (sm_120a, ...); default: this GPU's, if the program has no code for it")
      ->check(architecture_error);
  c.add_option("-t,--threads", o->threads, "number of compiler threads; 0: one per core")
      ->check(in_range(0, 1024));
  c.footer("Example: moesaic warmup --architecture sm_120a");
  return [o] { return run_warmup(*o); };
}

}  // namespace moesaic::app
