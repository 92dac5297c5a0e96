#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "commands.h"
#include "model/sequence_runner.h"
#include "model_options.h"

namespace moesaic::app {
namespace {

constexpr int kChunk = 512;  // rows of a prefill step, as the field's benchmarks have their micro-batch

struct Options {
  ModelOptions model;
  std::vector<int> prompts = {512}, generations = {128}, depths = {0};
  int reps = 5;
  std::string format = "md";
};

struct Line {
  std::string test;
  int depth = 0, batch = 1;
  std::vector<double> tok_s;   // sorted
  double bytes_per_token = 0;  // 0 where compute is the limit (prefill)
  double median() const { return (tok_s[(tok_s.size() - 1) / 2] + tok_s[tok_s.size() / 2]) / 2; }
};

// Bytes of KV that one decode step reads at a depth, as the model's own formats count them (2 bytes an
// element).
double kv_bytes(const ModelConfig& c, int depth) {
  double tokens = 0;
  for (const bool sliding : c.sliding) tokens += sliding ? std::min(depth + 1, c.window) : depth + 1;
  return tokens * 2 * c.kv_size() * 2;
}

std::vector<int32_t> random_tokens(int n, int vocab, std::mt19937& rng) {
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % vocab);
  return tokens;
}

// Tokens a second of one repetition: the sequence is brought to the depth untimed.
Result<double> time_once(SequenceRunner& runner, int depth, int tokens, bool prefill, int vocab,
                         std::mt19937& rng) {
  std::vector<float> logits;
  runner.reset();
  if (depth > 0)
    RETURN_IF_ERROR(runner.append(random_tokens(depth, vocab, rng), SequenceRunner::Wanted::kNone, logits));
  const std::vector<int32_t> input = random_tokens(tokens, vocab, rng);
  const auto start = std::chrono::steady_clock::now();
  for (int first = 0; first < tokens; first += prefill ? tokens : 1) {
    const auto part = std::span(input).subspan(first, prefill ? tokens : 1);
    RETURN_IF_ERROR(runner.append(part, SequenceRunner::Wanted::kLast, logits));
  }
  return tokens / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<Line> measure(const Options& o, LoadedModel& m, SequenceRunner& runner, int depth, int tokens,
                     bool prefill) {
  std::mt19937 rng(1);
  const ModelConfig& c = m.checkpoint.config;
  Line line{.test = fmt::format("{}{}", prefill ? "pp" : "tg", tokens), .depth = depth};
  for (int rep = -1; rep < o.reps; ++rep) {  // the first one warms up
    ASSIGN_OR_RETURN(const double tok_s, time_once(runner, depth, tokens, prefill, c.vocab, rng));
    if (rep >= 0) line.tok_s.push_back(tok_s);
  }
  std::sort(line.tok_s.begin(), line.tok_s.end());
  if (!prefill)
    line.bytes_per_token = bytes_per_token(m.checkpoint.weights, c) + kv_bytes(c, depth + tokens / 2);
  return line;
}

nlohmann::ordered_json to_json(const Line& l, const Options& o, const LoadedModel& m) {
  const double gb_s = l.median() * l.bytes_per_token / 1e9;
  return {{"model", o.model.model},
          {"device", m.caps.name},
          {"threads", m.caps.threads},
          {"test", l.test},
          {"depth", l.depth},
          {"batch", l.batch},
          {"reps", o.reps},
          {"tok_s", l.median()},
          {"tok_s_min", l.tok_s.front()},
          {"tok_s_max", l.tok_s.back()},
          {"bytes_per_token", l.bytes_per_token},
          {"gb_s", gb_s},
          {"ceiling_gb_s", m.caps.ceiling_gb_s},
          {"share", m.caps.ceiling_gb_s > 0 ? gb_s / m.caps.ceiling_gb_s : 0}};
}

void print_md(const Line& l, const LoadedModel& m) {
  const double gb_s = l.median() * l.bytes_per_token / 1e9;
  const std::string memory =
      l.bytes_per_token > 0 ? fmt::format("{:.3f} | {:.1f} | {:.0f}%", l.bytes_per_token / 1e9, gb_s,
                                          m.caps.ceiling_gb_s > 0 ? 100 * gb_s / m.caps.ceiling_gb_s : 0.0)
                            : " |  | ";
  fmt::print("| {} | {} | {:.2f} | {:.2f} - {:.2f} | {} |\n", l.test, l.depth, l.median(), l.tok_s.front(),
             l.tok_s.back(), memory);
  std::fflush(stdout);
}

void print_csv(const Line& l, const Options& o, const LoadedModel& m) {
  const double gb_s = l.median() * l.bytes_per_token / 1e9;
  fmt::print("{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.0f},{:.3f},{:.2f},{:.4f}\n", o.model.model,
             m.caps.name, m.caps.threads, l.test, l.depth, l.batch, o.reps, l.median(), l.tok_s.front(),
             l.tok_s.back(), l.bytes_per_token, gb_s, m.caps.ceiling_gb_s,
             m.caps.ceiling_gb_s > 0 ? gb_s / m.caps.ceiling_gb_s : 0);
}

void print_header(const Options& o, const LoadedModel& m) {
  if (o.format == "csv")
    fmt::print(
        "model,device,threads,test,depth,batch,reps,tok_s,tok_s_min,tok_s_max,bytes_per_token,gb_s,ceiling_"
        "gb_s,share\n");
  if (o.format != "md") return;
  fmt::print("{} on {}, read bandwidth {:.1f} GB/s (measured), loaded in {:.1f} s\n\n", o.model.model,
             m.caps.name, m.caps.ceiling_gb_s, m.load_seconds);
  fmt::print(
      "| test | depth | tok/s (median of {}) | min - max | GB/token | GB/s | share of bandwidth |\n| --- | "
      "---: | ---: | ---: | ---: | ---: | ---: |\n",
      o.reps);
}

Status run_bench(const Options& o) {
  ASSIGN_OR_RETURN(LoadedModel m, load_model(o.model, kChunk));
  const auto largest = [](const std::vector<int>& v) {
    return v.empty() ? 0 : *std::max_element(v.begin(), v.end());
  };
  const int longest = largest(o.depths) + std::max(largest(o.prompts), largest(o.generations));
  ASSIGN_OR_RETURN(SequenceRunner runner, SequenceRunner::create(*m.backend, m.checkpoint.config,
                                                                 {.max_tokens = longest, .chunk = kChunk}));
  print_header(o, m);
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const int depth : o.depths) {
    for (const bool prefill : {true, false}) {
      for (const int tokens : prefill ? o.prompts : o.generations) {
        if (tokens == 0) continue;
        ASSIGN_OR_RETURN(const Line line, measure(o, m, runner, depth, tokens, prefill));
        if (o.format == "md") print_md(line, m);
        if (o.format == "csv") print_csv(line, o, m);
        lines.push_back(to_json(line, o, m));
      }
    }
  }
  if (o.format == "json") fmt::print("{}\n", lines.dump(2));
  return {};
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand(
      "bench", "Time prefill (pp) and decoding (tg), with the share of the machine's measured bandwidth");
  o->model.add_to(c);
  const auto sizes = CLI::Range(0, 1 << 20);
  c.add_option("-p,--prompt", o->prompts, "prompt lengths of the pp tests; 0: none")
      ->delimiter(',')
      ->check(sizes)
      ->capture_default_str();
  c.add_option("-n,--generate", o->generations, "tokens of the tg tests; 0: none")
      ->delimiter(',')
      ->check(sizes)
      ->capture_default_str();
  c.add_option("-d,--depth", o->depths, "tokens in the KV cache before each test")
      ->delimiter(',')
      ->check(sizes)
      ->capture_default_str();
  c.add_option("-r,--reps", o->reps, "timed repetitions, after one to warm up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  c.add_option("-o,--output", o->format, "md, json or csv")
      ->check(CLI::IsMember({"md", "json", "csv"}))
      ->capture_default_str();
  c.footer("Example: moesaic bench -m gpt-oss-20b.gguf -p 512,2048 -n 32 -d 0,4096");
  return [o] { return run_bench(*o); };
}

}  // namespace moesaic::app
