#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "commands.h"
#include "model/sequence_runner.h"
#include "model_options.h"
#include "tokenizer_source.h"

namespace moesaic::app {
namespace {

constexpr int kRows = 128;  // rows whose logits are held at once: 128 * 201,088 floats are 103 MB

struct Options {
  ModelOptions model;
  std::string file, format = "md";
  int context = 2048;
  bool special = false;
};

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  float top = logits[0];
  for (const float v : logits) top = std::max(top, v);
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - top);
  return std::log(sum) + top - logits[token];
}

// The text in windows of `context` tokens; every token but a window's first is predicted from those before
// it.
Status run_perplexity(const Options& o) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(o.file));
  ASSIGN_OR_RETURN(LoadedModel m, load_model(o.model, 512));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, tokenizer_of(m.checkpoint));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, tokenizer.try_encode(text, o.special));
  if (tokens.size() < 2) return invalid("{}: {} tokens are too few to predict any", o.file, tokens.size());
  const int vocab = m.checkpoint.config.vocab;
  ASSIGN_OR_RETURN(SequenceRunner runner, SequenceRunner::create(*m.backend, m.checkpoint.config,
                                                                 {.max_tokens = o.context, .chunk = kRows}));
  double nll = 0;
  size_t count = 0;
  std::vector<float> logits;
  for (size_t at = 0; at + 1 < tokens.size();) {
    if (runner.length() == o.context) runner.reset();
    const size_t n = std::min(
        {tokens.size() - at, static_cast<size_t>(kRows), static_cast<size_t>(o.context - runner.length())});
    for (const int32_t t : std::span(tokens).subspan(at, n)) {
      if (t >= vocab)
        return invalid("{}: token {} is outside the model's vocabulary of {}", o.file, t, vocab);
    }
    RETURN_IF_ERROR(runner.append(std::span(tokens).subspan(at, n), SequenceRunner::Wanted::kAll, logits));
    const bool window_ends = runner.length() == o.context;
    for (size_t i = 0; i < n && at + i + 1 < tokens.size() && !(window_ends && i + 1 == n); ++i, ++count) {
      nll += negative_log_likelihood(std::span(logits).subspan(i * vocab, vocab), tokens[at + i + 1]);
    }
    at += n;
  }
  const double mean = nll / static_cast<double>(count);
  if (o.format == "json") {
    fmt::print(
        "{}\n",
        nlohmann::ordered_json({{"perplexity", std::exp(mean)}, {"nll", mean}, {"tokens", count}}).dump());
  } else {
    fmt::print("perplexity {:.4f} (negative log-likelihood {:.5f} a token, {} tokens predicted)\n",
               std::exp(mean), mean, count);
  }
  return {};
}

}  // namespace

Run add_perplexity(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  o->model.add_to(c);
  c.add_option("-f,--file", o->file, "the text")->required();
  c.add_option("--ctx", o->context, "tokens of a window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  c.add_flag("--special", o->special, "let names such as <|start|> in the text become special tokens");
  c.add_option("-o,--output", o->format, "md or json")->check(CLI::IsMember({"md", "json"}));
  return [o] { return run_perplexity(*o); };
}

}  // namespace moesaic::app
