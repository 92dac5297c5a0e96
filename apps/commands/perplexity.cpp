#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "api/tokenizer_source.h"
#include "base/error.h"
#include "commands.h"
#include "model/sequence_runner.h"
#include "model_options.h"
#include "option_checks.h"
#include "print_json.h"
#include "progress.h"
#include "session.h"

namespace moesaic::app {
namespace {

constexpr int kHeldRows = 128;  // rows whose logits are held at once: 128 * 201,088 floats are 103 MB
constexpr int kDefaultContext = 2048;

struct PerplexityOptions {
  ModelOptions model;
  std::string file, format = "md";
  int context = 0, stride = 0;  // tokens; 0: the default
  bool special = false;
};

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  float top = logits[0];
  for (const float v : logits) top = std::max(top, v);
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - top);
  return std::log(sum) + top - logits[token];
}

struct Sum {
  double nll = 0;
  size_t count = 0;
};

double perplexity(const Sum& sum) { return std::exp(sum.nll / static_cast<double>(sum.count)); }

// Adds what the window tokens[begin, end) says of the tokens from `scored` on.
Status add_window(SequenceRunner& runner, std::span<const int32_t> tokens, size_t begin, size_t end,
                  size_t scored, Sum& sum, ProgressLine& progress) {
  runner.reset();
  std::vector<float> logits;
  for (size_t at = begin; at < end; at += kHeldRows) {
    progress.show(sum.count == 0 ? fmt::format("{} of {} tokens", at, tokens.size())
                                 : fmt::format("{} of {} tokens, perplexity {:.4f}", at, tokens.size(),
                                               perplexity(sum)));
    const size_t n = std::min(end - at, static_cast<size_t>(kHeldRows));
    // Rows before scored - 1 predict nothing that is asked for.
    const bool wanted = at + n >= scored;
    RETURN_IF_ERROR(runner.append(tokens.subspan(at, n),
                                  wanted ? SequenceRunner::Wanted::kAll : SequenceRunner::Wanted::kNone,
                                  logits));
    const size_t vocab = logits.size() / n;
    for (size_t i = 0; wanted && i < n; ++i) {
      const size_t next = at + i + 1;
      if (next < scored || next >= end) continue;
      sum.nll += negative_log_likelihood(std::span(logits).subspan(i * vocab, vocab), tokens[next]);
      ++sum.count;
    }
  }
  return {};
}

// Windows of `context` tokens, each `stride` after the one before it. A token is scored once, in the first
// window in which it has a token before it.
Result<Sum> sum_windows(SequenceRunner& runner, std::span<const int32_t> tokens, size_t context,
                        size_t stride) {
  Sum sum;
  ProgressLine progress;
  for (size_t begin = 0, scored = 1; scored < tokens.size(); begin += stride) {
    const size_t end = std::min(begin + context, tokens.size());
    scored = std::max(scored, begin + 1);
    RETURN_IF_ERROR(add_window(runner, tokens, begin, end, scored, sum, progress));
    scored = end;
  }
  return sum;
}

void print(const Sum& sum, const std::string& format) {
  const double mean = sum.nll / static_cast<double>(sum.count);
  if (format == "json") {
    const nlohmann::ordered_json json = {
        {"perplexity", perplexity(sum)}, {"nll", mean}, {"tokens", sum.count}};
    print_json(json);
  } else {
    fmt::print("perplexity {:.4f} (negative log-likelihood {:.5f} a token, {} tokens predicted)\n",
               perplexity(sum), mean, sum.count);
  }
}

Result<std::vector<int32_t>> tokens_of(const PerplexityOptions& o, const std::string& text,
                                       const Checkpoint& c) {
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, tokenizer_of(c));
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.try_encode(text, o.special));
  if (tokens.size() < 2) return invalid("{}: {} tokens are too few to predict any", o.file, tokens.size());
  for (const int32_t t : tokens) {
    if (t >= c.config.vocab)
      return invalid("{}: token {} is outside the model's vocabulary of {}", o.file, t, c.config.vocab);
  }
  return tokens;
}

Status run_perplexity(const PerplexityOptions& o) {
  if (o.context > 0 && o.stride > o.context)
    return usage(invalid("--stride {}: more than the {} tokens of a window", o.stride, o.context));
  ASSIGN_OR_RETURN(const std::string read, read_text_or_stdin(o.file));
  const std::string text = readable(read, "the text");
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(o.model, kHeldRows));
  const ModelConfig& config = m.checkpoint.config;
  RETURN_IF_ERROR(check_context(o.context, config, "--ctx"));
  const int context = o.context > 0 ? o.context : std::min(kDefaultContext, config.max_context);
  const int stride = o.stride > 0 ? std::min(o.stride, context) : context;
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, tokens_of(o, text, m.checkpoint));
  RETURN_IF_ERROR(load(m, {.context = context, .max_rows = kHeldRows}));
  ASSIGN_OR_RETURN(SequenceRunner runner,
                   SequenceRunner::create(*m.backend, config, {.max_tokens = context, .chunk = kHeldRows}));
  ASSIGN_OR_RETURN(const Sum sum, sum_windows(runner, tokens, context, stride));
  print(sum, o.format);
  return {};
}

}  // namespace

Run add_perplexity(CLI::App& app) {
  auto o = std::make_shared<PerplexityOptions>();
  CLI::App& c = *app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  o->model.add_to(c);
  c.add_option("-f,--file", o->file, "a file with the text; -: standard input")->required();
  c.add_option("--ctx", o->context, "tokens of a window (default: 2048 or the model's)")
      ->check(in_range(2, 1 << 20))
      ->default_str("");
  c.add_option("--stride", o->stride,
               "tokens from one window to the next; fewer than --ctx: each token is predicted from at least "
               "ctx - stride others (default: --ctx)")
      ->check(in_range(1, 1 << 20))
      ->default_str("");
  c.add_flag("--special", o->special, "let names such as <|start|> in the text become special tokens");
  c.add_option("-o,--output", o->format, "md or json")->check(one_of({"md", "json"}));
  c.footer("Example: moesaic perplexity -m openai/gpt-oss-20b -f wiki.txt --ctx 4096");
  return [o] { return run_perplexity(*o); };
}

}  // namespace moesaic::app
