#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "commands.h"
#include "model/sequence_runner.h"
#include "model_options.h"

namespace moesaic::app {
namespace {

struct Options {
  ModelOptions model;
  std::string tokens, format = "json";
  bool all = false;
};

Status run_logits(const Options& o) {
  ASSIGN_OR_RETURN(LoadedModel m, load_model(o.model, 512));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, parse_tokens(o.tokens, m.checkpoint.config.vocab));
  ASSIGN_OR_RETURN(SequenceRunner runner,
                   SequenceRunner::create(*m.backend, m.checkpoint.config,
                                          {.max_tokens = static_cast<int>(tokens.size())}));
  std::vector<float> logits;
  RETURN_IF_ERROR(
      runner.append(tokens, o.all ? SequenceRunner::Wanted::kAll : SequenceRunner::Wanted::kLast, logits));
  const size_t vocab = m.checkpoint.config.vocab, rows = logits.size() / vocab;
  // Written row by row: all rows of a large vocabulary would not fit a JSON tree.
  fmt::print("{{\"tokens\":{},\"rows\":[", nlohmann::json(tokens).dump());
  for (size_t r = 0; r < rows; ++r) {
    fmt::print("{}{{\"position\":{},\"logits\":[", r > 0 ? "," : "", tokens.size() - rows + r);
    for (size_t i = 0; i < vocab; ++i) fmt::print("{}{:.9g}", i > 0 ? "," : "", logits[r * vocab + i]);
    fmt::print("]}}");
  }
  fmt::print("]}}\n");
  return {};
}

}  // namespace

Run add_logits(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App& c =
      *app.add_subcommand("logits", "Print full-precision logits of a token sequence, for comparing engines");
  o->model.add_to(c);
  c.add_option("--tokens", o->tokens, "comma-separated ids, or @FILE")->required();
  c.add_flag("--all", o->all, "every position, not only the last");
  c.add_option("-o,--output", o->format, "json")->check(CLI::IsMember({"json"}));
  return [o] { return run_logits(*o); };
}

}  // namespace moesaic::app
