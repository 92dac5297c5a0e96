#include "bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "backend/host_placement.h"
#include "backend/profiling.h"
#include "base/error.h"
#include "base/file_cache.h"
#include "base/huge_pages.h"
#include "base/seconds.h"
#include "bench_page.h"
#include "ceiling.h"
#include "chat/terminal_text.h"
#include "commands.h"
#include "model_options.h"
#include "option_checks.h"
#include "print_json.h"
#include "progress.h"
#include "random_batch.h"

namespace moesaic::app {
namespace {

constexpr int kMostRows = 8192;  // rows of a step

struct Test {
  bool prefill;
  int depth, tokens, batch;
  std::string name() const { return fmt::format("{}{}", prefill ? "pp" : "tg", tokens); }
};

struct Line {
  Test test;
  std::vector<double> tok_s;     // all sequences together, sorted
  double bytes_per_token = 0;    // 0 where compute is the limit (prefill)
  double ceiling_gb_s = 0;       // the most that was read a second while it was measured
  double seconds_per_token = 0;  // by the roofline; 0: unknown
  bool by_flops = false;         // operations bound some of the ops, not bytes alone
  double median() const { return (tok_s[(tok_s.size() - 1) / 2] + tok_s[tok_s.size() / 2]) / 2; }
  double gb_s() const { return median() * bytes_per_token / 1e9; }
  double share() const { return median() * seconds_per_token; }
};

BenchPoint point_of(const Line& l) {
  return {.prefill = l.test.prefill,
          .tokens = l.test.tokens,
          .depth = l.test.depth,
          .batch = l.test.batch,
          .tok_s = l.median(),
          .least = l.tok_s.front(),
          .most = l.tok_s.back(),
          .roofline = l.share() > 0 ? l.median() / l.share() : 0};
}

int largest(const std::vector<int>& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); }

// Tokens that one sequence reaches at most.
int longest(const BenchOptions& o) {
  return largest(o.depths) + std::max({largest(o.prompts), largest(o.generations), 1});
}

// The work of all ops since the profile was reset, as the backend counts it: it reads weights and KV in its
// own formats, and only the experts that the batch reached. None where the host computes experts: their bytes
// are not among a GPU's.
std::vector<OpProfile> work_done(Backend& backend) {
  const HostPlacement* const placement = backend.host_placement();
  if (placement != nullptr && placement->host_layers() > 0) return {};
  Profiler* const profiler = backend.profiler();
  return profiler != nullptr ? profiler->profile() : std::vector<OpProfile>();
}
double bytes_read(const std::vector<OpProfile>& ops) {
  double bytes = 0;
  for (const OpProfile& op : ops) bytes += op.bytes;
  return bytes;
}

// A prompt's bytes say nothing where the device's operations are not known. What is quicker than the ceilings
// allow was read from caches, or in a better moment: its own figure is the ceiling then.
void add_roofline(Line& line, const std::vector<OpProfile>& ops, const BackendCaps& caps) {
  if (ops.empty() || line.ceiling_gb_s <= 0 || (line.test.prefill && caps.peak_flops <= 0)) return;
  const Roofline least = roofline_of(ops, line.ceiling_gb_s * 1e9, caps);
  line.seconds_per_token =
      std::min(least.seconds / line.test.tokens / line.test.batch, 1 / line.tok_s.back());
  line.by_flops = least.by_flops;
}

// Tokens a second of one repetition: the sequences are brought to the depth untimed, in the first one by a
// prefill.
Result<double> time_once(Backend& backend, RandomBatch& random, const Test& t) {
  RETURN_IF_ERROR(random.restart(t.depth));
  if (Profiler* const profiler = backend.profiler()) profiler->reset_profile();
  const auto start = std::chrono::steady_clock::now();
  if (t.prefill) RETURN_IF_ERROR(random.append(t.tokens, true));
  for (int i = 0; !t.prefill && i < t.tokens; ++i) RETURN_IF_ERROR(random.append(1, true));
  RETURN_IF_ERROR(random.wait());
  const double seconds = seconds_since(start);
  return static_cast<double>(t.tokens) * t.batch / seconds;
}

// A CPU shares its memory and its cores with other programs: what it can read is measured before a decoding
// test and after each repetition, what it can multiply after each repetition of a prompt, and the most of it
// counts. A GPU is measured once, when it has rested.
Result<Line> measure(const BenchOptions& o, LoadedModel& m, RandomBatch& random, const Test& t,
                     ProgressLine& progress) {
  Backend& backend = *m.backend;
  const bool again = backend.device().backend != "cuda" && !t.prefill;
  Line line{.test = t, .tok_s = {}, .ceiling_gb_s = again ? read_bandwidth(backend) : m.ceiling_gb_s};
  std::this_thread::sleep_for(std::chrono::seconds(o.delay));
  for (int rep = -1; rep < o.reps; ++rep) {  // the first one warms up
    progress.show(fmt::format("{} at depth {}, batch {}: repetition {} of {}", t.name(), t.depth, t.batch,
                              rep + 1, o.reps));
    ASSIGN_OR_RETURN(const double tok_s, time_once(backend, random, t));
    if (rep >= 0) line.tok_s.push_back(tok_s);
    if (again) line.ceiling_gb_s = std::max(line.ceiling_gb_s, read_bandwidth(backend));
    if (t.prefill) measure_rate(m);
  }
  progress.clear();
  std::sort(line.tok_s.begin(), line.tok_s.end());
  const std::vector<OpProfile> ops = work_done(backend);
  if (!t.prefill) line.bytes_per_token = bytes_read(ops) / t.tokens / t.batch;
  // Decoding that reads more than the measurement shows what can be read: from caches, or in a better moment.
  if (line.ceiling_gb_s > 0)
    line.ceiling_gb_s = std::max(line.ceiling_gb_s, line.tok_s.back() * line.bytes_per_token / 1e9);
  add_roofline(line, ops, m.caps);
  return line;
}

nlohmann::ordered_json to_json(const Line& l, const BenchOptions& o, const LoadedModel& m) {
  return {{"model", o.model.model},
          {"device", m.caps.name},
          {"threads", m.caps.threads},
          {"test", l.test.name()},
          {"depth", l.test.depth},
          {"batch", l.test.batch},
          {"reps", o.reps},
          {"tok_s", l.median()},
          {"tok_s_min", l.tok_s.front()},
          {"tok_s_max", l.tok_s.back()},
          {"bytes_per_token", l.bytes_per_token},
          {"gb_s", l.gb_s()},
          {"ceiling_gb_s", l.ceiling_gb_s},
          {"peak_tflop_s", m.caps.peak_flops / 1e12},
          {"share", l.share()},
          {"reads", m.caps.reads}};
}

void print_md(const Line& l, const BackendCaps& caps) {
  const std::string memory =
      l.bytes_per_token > 0 ? fmt::format("{:.3f} | {:.1f}", l.bytes_per_token / 1e9, l.gb_s()) : " | ";
  std::string share;
  if (l.seconds_per_token > 0) share = fmt::format("{:.0f}% of {:.1f}", 100 * l.share(), l.ceiling_gb_s);
  if (l.by_flops) share += fmt::format(" GB/s and {}", rate_words(caps.peak_flops));
  fmt::print("| {} | {} | {} | {:.2f} | {:.2f} - {:.2f} | {} | {} |\n", l.test.name(), l.test.depth,
             l.test.batch, l.median(), l.tok_s.front(), l.tok_s.back(), memory, share);
}

void print_csv(const Line& l, const BenchOptions& o, const LoadedModel& m) {
  fmt::print("{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.0f},{:.3f},{:.2f},{:.3f},{:.4f},{}\n",
             csv_text(o.model.model), csv_text(m.caps.name), m.caps.threads, l.test.name(), l.test.depth,
             l.test.batch, o.reps, l.median(), l.tok_s.front(), l.tok_s.back(), l.bytes_per_token, l.gb_s(),
             l.ceiling_gb_s, m.caps.peak_flops / 1e12, l.share(), csv_text(m.caps.reads));
}

void print_header(const BenchOptions& o, const LoadedModel& m) {
  if (o.format == "csv")
    fmt::print(
        "model,device,threads,test,depth,batch,reps,tok_s,tok_s_min,tok_s_max,bytes_per_token,gb_s,ceiling_"
        "gb_s,peak_tflop_s,share,reads\n");
  if (o.format != "md") return;
  fmt::print("{} on {}, loaded in {:.2f} s\n", chat::printable_line(o.model.model), m.caps.name,
             m.load_seconds);
  if (!m.caps.reads.empty()) fmt::print("weights are read with {}\n", m.caps.reads);
  if (m.choice.options.tp > 1)
    fmt::print("GB/token, GB/s and share are those of the first of {} ranks\n", m.choice.options.tp);
  if (m.backend->device().backend == "cpu") fmt::print("huge pages: {}\n", describe(read_huge_pages()));
  fmt::print("\n");
  fmt::print(
      "| test | depth | batch | tok/s (median of {}) | min - max | GB/token | GB/s | share of roofline |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
      o.reps);
}

std::vector<Test> tests_of(const BenchOptions& o, int batch) {
  std::vector<Test> tests;
  for (const int depth : o.depths) {
    for (const bool prefill : {true, false}) {
      for (const int tokens : prefill ? o.prompts : o.generations) {
        if (tokens > 0) tests.push_back({prefill, depth, tokens, batch});
      }
    }
  }
  return tests;
}

// Rows of a prefill step: what was asked for, or what suits the device.
int rows_of(const BenchOptions& o, int by_default) {
  return std::max(largest(o.batches), o.ubatch > 0 ? o.ubatch : by_default);
}

Result<std::vector<BenchRun>> read_beside(const BenchOptions& o) {
  std::vector<BenchRun> runs;
  if (!o.beside.empty() && o.format != "html") return usage(invalid("--beside: give -o html"));
  for (const std::string& file : o.beside) {
    ASSIGN_OR_RETURN(const std::string text, read_whole(file, kMostRunBytes));
    ASSIGN_OR_RETURN(BenchRun run, read_bench_run(text, file));
    runs.push_back(std::move(run));
  }
  return runs;
}

// Decoding only: prompts have no drafts.
Status run_with_drafts(const BenchOptions& o) {
  if (o.acceptance.empty() || o.acceptance.size() > kMostDraft)
    return usage(invalid(
        "--speculative: give --acceptance with 1 to {} chances, one for each token of a draft: random "
        "texts have no acceptance of their own",
        kMostDraft));
  const auto is_chance = [](double c) { return c >= 0 && c <= 1; };  // NaN is none
  if (!std::all_of(o.acceptance.begin(), o.acceptance.end(), is_chance))
    return usage(invalid("--acceptance: chances are from 0 to 1"));
  if (o.format == "csv" || o.format == "html") return usage(invalid("--speculative: -o is md or json"));
  if (largest(o.generations) == 0) return usage(invalid("--speculative: -n 0 leaves nothing to decode"));
  return run_draft_bench(o);
}

}  // namespace

std::string csv_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : chat::printable(text)) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + '"';
}

Status run_bench(const BenchOptions& o) {
  ASSIGN_OR_RETURN(std::vector<BenchRun> runs, read_beside(o));
  if (!o.moe.empty() && o.format == "html") return usage(invalid("--moe: -o is md, json or csv"));
  if (!o.moe.empty()) return run_moe_bench(o);
  if (largest(o.prompts) == 0 && largest(o.generations) == 0)
    return usage(invalid("-p 0 -n 0: that leaves nothing to time"));
  if (o.speculative != "none") return run_with_drafts(o);
  if (!o.acceptance.empty()) return usage(invalid("--acceptance: give --speculative"));
  ASSIGN_OR_RETURN(LoadedModel m,
                   prepare_model(o.model, o.ubatch > 0 ? rows_of(o, o.ubatch) : 0, largest(o.batches)));
  RETURN_IF_ERROR(check_context(longest(o), m.checkpoint.config, "depth and test together"));
  const int rows = rows_of(o, m.backend->caps().prefill_rows);
  RETURN_IF_ERROR(load(m, {.sequences = largest(o.batches), .context = longest(o), .max_rows = rows}));
  measure_ceilings(m);
  print_header(o, m);
  ProgressLine progress;
  JsonArray lines(o.format == "json");
  BenchRun run{.name = fmt::format("{} on {}", o.model.model, m.caps.name), .points = {}};
  for (const int batch : o.batches) {
    ASSIGN_OR_RETURN(RandomBatch random,
                     RandomBatch::create(*m.backend, m.checkpoint.config,
                                         {.sequences = batch, .max_tokens = longest(o), .max_rows = rows}));
    for (const Test& test : tests_of(o, batch)) {
      ASSIGN_OR_RETURN(const Line line, measure(o, m, random, test, progress));
      if (o.format == "md") print_md(line, m.caps);
      if (o.format == "csv") print_csv(line, o, m);
      std::fflush(stdout);
      lines.add(to_json(line, o, m));
      run.points.push_back(point_of(line));
    }
  }
  runs.insert(runs.begin(), std::move(run));
  if (o.format == "html") fmt::print("{}", bench_page(runs));
  return {};
}

Run add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App& c = *app.add_subcommand(
      "bench", "Time prefill (pp) and decoding (tg), with the share of what bandwidth and arithmetic allow");
  o->model.add_to(c);
  const auto sizes = in_range(0, 1 << 20);
  c.add_option("-p,--prompt", o->prompts, "prompt lengths of the pp tests; 0: none")
      ->delimiter(',')
      ->check(sizes);
  c.add_option("-n,--generate", o->generations, "tokens of the tg tests; 0: none")
      ->delimiter(',')
      ->check(sizes);
  c.add_option("-d,--depth", o->depths, "tokens in the KV cache before each test, computed once")
      ->delimiter(',')
      ->check(sizes);
  c.add_option("-b,--batch", o->batches, "sequences at a time; tok/s are those of all together")
      ->delimiter(',')
      ->check(in_range(1, kMostRows));
  c.add_option("--ubatch", o->ubatch,
               "most rows of a prefill step; 0: the device's default (cpu 512, a GPU with 70 GB or more "
               "8192, with 40 GB 4096, with less 2048)")
      ->check(in_range(0, kMostRows));
  c.add_option("--moe", o->moe,
               "time the MoE operator alone, with these numbers of tokens: --moe 1,8,512; cuda only")
      ->delimiter(',')
      ->check(in_range(1, 1 << 16));
  c.add_option(
       "--speculative", o->speculative,
       "time decoding with this drafter's drafts, beside decoding without (see run); eagle3:dummy is a draft "
       "head of the public heads' sizes with random weights")
      ->check(speculative_error);
  c.add_option("--acceptance", o->acceptance,
               "the chance of each token of a draft to be accepted if the one before it was: 0.8,0.7,0.6; as "
               "many are drafted")
      ->delimiter(',')
      ->check(in_range(0.0, 1.0));
  c.add_option("-r,--reps", o->reps, "timed repetitions, after one to warm up")->check(in_range(1, 1000));
  c.add_option("--delay", o->delay, "seconds to wait before each test, so that the device cools down")
      ->check(in_range(0, 3600));
  c.add_option("-o,--output", o->format, "md, json, csv, or html: a page with charts, to be kept in a file")
      ->check(one_of({"md", "json", "csv", "html"}));
  c.add_option("--beside", o->beside,
               "html: another run to draw beside this one, as `bench -o json` or `llama-bench -o json` "
               "printed it; may "
               "be given several times");
  c.footer("Example: moesaic bench -m gpt-oss-20b.gguf -p 512,2048 -n 32 -d 0,4096 -b 1,8");
  return [o] { return run_bench(*o); };
}

}  // namespace moesaic::app
