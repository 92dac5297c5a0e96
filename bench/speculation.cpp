// Measures drafts through the public API, and checks that they change nothing:
//   speculation MODEL DEVICE THREADS TOKENS BATCH PROMPTS ROUNDS DRAFTER[=K]...
// For each kind of text PROMPTS requests generate exactly TOKENS tokens, BATCH at a time, without drafts and
// with each drafter's (K: tokens of every draft; else as many as pay). Rounds take turns, and each begins
// with another one, since who comes first is some 3% faster (a drafter `none` shows what is left of that);
// medians are printed, of all but the first where there are several: of tokens a second, and of tokens a
// second of CPU time, which with one thread does not count what other programs take. Exit status 1 if a token
// differs.
//
// PROMPTS may be a file instead: prompts with the names of special tokens in them, each followed by a zero
// byte (tools/tiny/prompts.py writes one). Their answers end where the model ends them, at TOKENS at most.
//
// `dummy:` models have random weights: their prompts are random tokens, and so, at temperature 3, are their
// answers, of which no drafter guesses anything. They have no tokenizer: give any behind a plus sign,
// dummy:gpt-oss-20b+models/tiny/tokenizer.json.
#include <moesaic/engine.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using namespace moesaic;

struct Kind {
  const char* name;
  double temperature;
  bool repeats;  // the prompt has the text that the answer is likely to repeat
};
const std::vector<Kind> kKinds = {{"repeats its prompt, greedy", 0, true},
                                  {"repeats its prompt, sampled", 1, true},
                                  {"answers, greedy", 0, false},
                                  {"answers, sampled", 1, false},
                                  {"noise, temperature 3", 3, false}};
const std::vector<Kind> kDummyKinds = {{"random tokens", 3, false}};
const std::vector<Kind> kFileKinds = {{"prompts of a file, greedy", 0, false},
                                      {"prompts of a file, sampled", 1, false}};

struct Work {
  int prompts = 0, tokens = 0;  // requests, tokens of each at most
  std::vector<std::string> texts = {};
  bool dummy = false;
  const std::vector<Kind>& kinds() const { return dummy ? kDummyKinds : texts.empty() ? kKinds : kFileKinds; }
};

struct Run {
  std::string drafter;
  Model model;
  std::vector<double> tok_s = {}, tok_cpu_s = {};  // by the clock, and by CPU time
  std::vector<std::vector<int32_t>> answers = {};
  SpeculationStats before = {}, after = {};
};

std::string text_of(const Kind& kind, int i) {
  if (!kind.repeats) return "What is " + std::to_string(100 + i) + " + " + std::to_string(3 * i) + "?";
  std::string item = "int value_" + std::to_string(i) + " = read(file, " + std::to_string(7 * i) + "); ",
              text;
  for (int k = 0; k < 5; ++k) text += item;
  return text;
}

std::vector<int32_t> random_prompt(const Model& model, int i) {
  std::vector<int32_t> prompt;
  uint64_t state = static_cast<uint64_t>(i) + 1;
  while (prompt.size() < 32) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    prompt.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(model.vocab())));
  }
  return prompt;
}

Result<GenerationRequest> request_of(const Model& model, const Kind& kind, int i, const Work& work) {
  auto prompt = work.dummy            ? Result<std::vector<int32_t>>(random_prompt(model, i))
                : !work.texts.empty() ? model.tokenize(work.texts[static_cast<size_t>(i)], true)
                : kind.repeats
                    ? model.tokenize(text_of(kind, i))
                    : model.chat_prompt(R"([{"role": "user", "content": ")" + text_of(kind, i) + "\"}]");
  if (!prompt.ok()) return prompt.status();
  GenerationRequest request{.prompt = std::move(prompt).value(), .sampling = {}};
  request.sampling.temperature = kind.temperature;
  request.sampling.seed = static_cast<uint64_t>(i);
  request.sampling.max_tokens = work.tokens;
  if (work.texts.empty()) request.sampling.stop_tokens = {model.vocab() - 1};  // goes on behind its end
  return request;
}

Status answer(Run& run, const Kind& kind, const Work& work) {
  run.answers.assign(static_cast<size_t>(work.prompts), {});
  run.before = run.model.stats().speculation;
  const auto start = Clock::now();
  const std::clock_t cpu_start = std::clock();
  for (int i = 0; i < work.prompts; ++i) {
    auto request = request_of(run.model, kind, i, work);
    if (!request.ok()) return request.status();
    std::vector<int32_t>& to = run.answers[static_cast<size_t>(i)];
    Status status = run.model.submit(std::move(request).value(),
                                     {.on_token = [&to](const SampledToken& t) { to.push_back(t.token); },
                                      .on_text = {},
                                      .on_end = [](const Outcome&) {}});
    if (!status.ok()) return status;
  }
  Status status = run.model.run();
  const std::chrono::duration<double> seconds = Clock::now() - start;
  const double cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  size_t tokens = 0;
  for (const std::vector<int32_t>& a : run.answers) tokens += a.size();
  run.tok_s.push_back(static_cast<double>(tokens) / seconds.count());
  run.tok_cpu_s.push_back(static_cast<double>(tokens) / cpu_seconds);
  run.after = run.model.stats().speculation;
  return status;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

// PROMPTS: a number or a file.
Work work_of(const std::string& model, const char* prompts, int tokens) {
  Work work{.prompts = std::atoi(prompts), .tokens = tokens, .dummy = model.starts_with("dummy:")};
  if (work.prompts > 0 || work.dummy) return work;
  std::ifstream file(prompts, std::ios::binary);
  for (std::string text; std::getline(file, text, '\0');) work.texts.push_back(text);
  work.prompts = static_cast<int>(work.texts.size());
  return work;
}

Result<Run> open(const std::string& path, const char* device, int threads, int batch,
                 const std::string& spec) {
  const size_t at = spec.rfind('='), plus = path.find('+');
  OpenOptions options{.device = device, .threads = threads, .context = 2048, .max_batch = batch};
  if (plus != std::string::npos) options.tokenizer = path.substr(plus + 1);
  // eagle3:dummy has options with an equals sign of their own.
  const bool has_length = at != std::string::npos &&
                          spec.find_first_not_of("0123456789", at + 1) == std::string::npos &&
                          !spec.starts_with("eagle3:dummy,");
  options.speculative = has_length ? spec.substr(0, at) : spec;
  options.draft_tokens = has_length ? std::atoi(spec.c_str() + at + 1) : 0;
  auto model = Model::open(path.substr(0, plus), options);
  if (!model.ok()) return model.status();
  return Run{.drafter = spec, .model = std::move(model).value()};
}

// The median of the rounds but the first.
double median_ratio(const std::vector<double>& values, const std::vector<double>& plain) {
  std::vector<double> ratios;
  for (size_t i = values.size() > 1 ? 1 : 0; i < values.size(); ++i) ratios.push_back(values[i] / plain[i]);
  return median(ratios);
}

void print(const Kind& kind, const Run& run, const Run& plain) {
  const SpeculationStats &a = run.after, &b = run.before;
  std::printf(
      "| %s | %s | %.0f | %.3f | %.0f | %.3f | %llu | %llu | %llu | %s |\n", kind.name, run.drafter.c_str(),
      median(run.tok_s), median_ratio(run.tok_s, plain.tok_s), median(run.tok_cpu_s),
      median_ratio(run.tok_cpu_s, plain.tok_cpu_s), static_cast<unsigned long long>(a.drafts - b.drafts),
      static_cast<unsigned long long>(a.drafted - b.drafted),
      static_cast<unsigned long long>(a.accepted - b.accepted), run.answers == plain.answers ? "yes" : "NO");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 9)
    return fail({StatusCode::kUsage,
                 "usage: speculation MODEL DEVICE THREADS TOKENS BATCH PROMPTS ROUNDS DRAFTER[=K]..."});
  const int batch = std::atoi(argv[5]), rounds = std::atoi(argv[7]);
  const Work work = work_of(argv[1], argv[6], std::atoi(argv[4]));
  if (work.prompts == 0) return fail({StatusCode::kUsage, std::string(argv[6]) + ": no prompts"});
  std::vector<Run> runs;
  for (int a = 7; a < argc; ++a) {
    auto run = open(argv[1], argv[2], std::atoi(argv[3]), batch, a == 7 ? "none" : argv[a]);
    if (!run.ok()) return fail(run.status());
    runs.push_back(std::move(run).value());
  }
  std::printf(
      "| text | drafter | tok/s | times none | tok/CPU s | times none | drafts | drafted | accepted | same "
      "tokens |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
  bool same = true;
  for (const Kind& kind : work.kinds()) {
    for (Run& run : runs) run.tok_s.clear(), run.tok_cpu_s.clear();
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < runs.size(); ++i) {
        const Status status = answer(runs[(i + static_cast<size_t>(round)) % runs.size()], kind, work);
        if (!status.ok()) return fail(status);
      }
      for (const Run& run : runs) same &= run.answers == runs.front().answers;
    }
    for (const Run& run : runs) print(kind, run, runs.front());
  }
  return same ? 0 : 1;
}
