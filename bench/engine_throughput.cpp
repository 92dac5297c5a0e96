// Tokens a second of a model by the number of requests at work, through the public API:
//   engine_throughput MODEL TOKENS STREAMS...
// Every stream asks a question of its own and generates exactly TOKENS tokens; three rounds, the median.
#include <moesaic/engine.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using namespace moesaic;

struct Round {
  double tok_s = 0, first_ms = 0;             // first: the median time to a stream's first token
  double median_gap_ms = 0, late_gap_ms = 0;  // between a stream's tokens: the median, and the 99th of 100
};

double at(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

Result<Round> measure(Model& model, int streams, int tokens) {
  std::vector<double> first, gaps;
  const auto start = Clock::now();
  const auto ms = [](auto a, auto b) { return std::chrono::duration<double, std::milli>(b - a).count(); };
  for (int i = 0; i < streams; ++i) {
    const std::string question = "What is " + std::to_string(100 + i) + " + " + std::to_string(3 * i) + "?";
    auto prompt = model.chat_prompt(R"([{"role": "user", "content": ")" + question + "\"}]");
    if (!prompt.ok()) return prompt.status();
    GenerationRequest request{.prompt = std::move(prompt).value(), .sampling = {}};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = tokens;
    request.sampling.stop_tokens = {model.vocab() - 1};  // goes on behind its end
    const auto on_token = [&, last = start](const SampledToken&) mutable {
      const auto now = Clock::now();
      (last == start ? first : gaps).push_back(ms(last, now));
      last = now;
    };
    const Status status = model.submit(
        std::move(request), {.on_token = on_token, .on_text = {}, .on_end = [](const Outcome&) {}});
    if (!status.ok()) return status;
  }
  const Status status = model.run();
  if (!status.ok()) return status;
  const double seconds = ms(start, Clock::now()) / 1e3;
  return Round{.tok_s = static_cast<double>(first.size() + gaps.size()) / seconds,
               .first_ms = at(first, 0.5),
               .median_gap_ms = at(gaps, 0.5),
               .late_gap_ms = at(gaps, 0.99)};
}

int fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return fail({StatusCode::kUsage, "usage: engine_throughput MODEL TOKENS STREAMS..."});
  const int tokens = std::atoi(argv[2]);
  std::printf(
      "| streams | tok/s | first token ms | between tokens ms | 99%% ms | preempted |\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (int a = 3; a < argc; ++a) {
    const int streams = std::atoi(argv[a]);
    auto model = Model::open(argv[1], {.context = 1024, .max_batch = streams});
    if (!model.ok()) return fail(model.status());
    std::vector<Round> rounds;
    for (int i = 0; i < 4; ++i) {  // the first one warms up
      const Result<Round> round = measure(model.value(), streams, tokens);
      if (!round.ok()) return fail(round.status());
      if (i > 0) rounds.push_back(round.value());
    }
    std::sort(rounds.begin(), rounds.end(), [](const Round& x, const Round& y) { return x.tok_s < y.tok_s; });
    const Round& r = rounds[1];
    std::printf("| %d | %.0f | %.1f | %.2f | %.2f | %llu |\n", streams, r.tok_s, r.first_ms, r.median_gap_ms,
                r.late_gap_ms, static_cast<unsigned long long>(model->stats().preemptions));
  }
  return 0;
}
