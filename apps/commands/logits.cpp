#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "commands.h"
#include "model/sequence_runner.h"
#include "model_options.h"
#include "option_checks.h"

namespace moesaic::app {
namespace {

constexpr int kStepRows = 512;   // rows of a step
constexpr size_t kAllRows = 64;  // rows whose logits are held at once: 64 * 201,088 floats are 51 MB

struct LogitsOptions {
  ModelOptions model;
  std::string tokens, format = "json";
  bool all = false;
};

// Rows of the positions from `first` on, as members of the JSON array.
void print_rows(std::span<const float> logits, size_t vocab, size_t first, bool comma) {
  for (size_t row = 0; row * vocab < logits.size(); ++row) {
    fmt::print("{}{{\"position\":{},\"logits\":[", comma || row > 0 ? "," : "", first + row);
    for (size_t i = 0; i < vocab; ++i) fmt::print("{}{:.9g}", i > 0 ? "," : "", logits[row * vocab + i]);
    fmt::print("]}}");
  }
}

// Computed and written part by part: all rows of a long text would not fit the memory.
Status print_all(const LogitsOptions& o, const std::vector<int32_t>& tokens, size_t vocab,
                 SequenceRunner& runner) {
  const auto wanted = o.all ? SequenceRunner::Wanted::kAll : SequenceRunner::Wanted::kLast;
  const size_t part = o.all ? kAllRows : tokens.size();
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size(); at += part) {
    const auto chunk = std::span(tokens).subspan(at, std::min(part, tokens.size() - at));
    RETURN_IF_ERROR(runner.append(chunk, wanted, logits));
    if (at == 0) fmt::print("{{\"tokens\":{},\"rows\":[", nlohmann::json(tokens).dump());
    print_rows(logits, vocab, at + chunk.size() - logits.size() / vocab, at > 0);
  }
  fmt::print("]}}\n");
  return {};
}

Status run_logits(const LogitsOptions& o) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, parse_tokens(o.tokens));
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(o.model, kStepRows));
  const ModelConfig& config = m.checkpoint.config;
  RETURN_IF_ERROR(check_tokens(tokens, config.vocab));
  RETURN_IF_ERROR(check_context(std::ssize(tokens), config, "--tokens"));
  const SequenceRunner::Options sequence{.max_tokens = static_cast<int>(tokens.size()), .chunk = kStepRows};
  RETURN_IF_ERROR(load(m, {.context = sequence.max_tokens, .max_rows = kStepRows}));
  ASSIGN_OR_RETURN(SequenceRunner runner, SequenceRunner::create(*m.backend, config, sequence));
  return print_all(o, tokens, config.vocab, runner);
}

}  // namespace

Run add_logits(CLI::App& app) {
  auto o = std::make_shared<LogitsOptions>();
  CLI::App& c =
      *app.add_subcommand("logits", "Print full-precision logits of a token sequence, for comparing engines");
  o->model.add_to(c);
  c.add_option("--tokens", o->tokens, "comma-separated ids, @FILE, or @-: standard input")->required();
  c.add_flag("--all", o->all, "every position, not only the last");
  c.add_option("-o,--output", o->format, "json")->check(one_of({"json"}));
  c.footer(
      "Examples:\n"
      "  moesaic logits -m openai/gpt-oss-20b --tokens 200006,1428,200008\n"
      "  moesaic logits -m openai/gpt-oss-20b --tokens @ids.txt --all");
  return [o] { return run_logits(*o); };
}

}  // namespace moesaic::app
