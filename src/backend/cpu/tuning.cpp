#include "backend/cpu/tuning.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace moesaic::cpu {
namespace {

constexpr int kVersion = 5;  // counts changes of what is measured and how: older files are not read
constexpr int kLeastDistance = 64, kMostDistance = 1 << 16;
constexpr int kMostRun = 1 << 10;
constexpr double kSlower = 1.02;  // the standard threshold of expanding stays below it

struct HintName {
  Prefetch hint;
  const char *name, *words;
};
constexpr std::array<HintName, 3> kHints = {
    {{Prefetch::kT0, "t0", "T0"}, {Prefetch::kT1, "t1", "T1"}, {Prefetch::kNta, "nta", "NTA"}}};

const HintName& hint_of(Prefetch prefetch) {
  return *std::ranges::find(kHints, prefetch, &HintName::hint);  // not kNone
}

// A whole number without sign and nothing else.
std::optional<int> parse_int(std::string_view text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || text.starts_with('-')) return {};
  return value;
}

std::optional<GemmTuning> parse_hint(std::string_view text) {
  if (text == "none") return GemmTuning{.prefetch = Prefetch::kNone};
  const size_t colon = text.find(':');
  const auto* const hint = std::ranges::find(kHints, text.substr(0, colon), &HintName::name);
  if (hint == kHints.end() || colon == std::string_view::npos) return {};
  const std::optional<int> distance = parse_int(text.substr(colon + 1));
  if (!distance || *distance < kLeastDistance || *distance > kMostDistance || *distance % 64 != 0) return {};
  return GemmTuning{.prefetch = hint->hint, .distance = *distance};
}

// The tuning that it starts from, then the others, each once.
template <typename Values, typename Set>
std::vector<CpuTuning> with_each(const CpuTuning& from, const Values& values, Set&& set) {
  std::vector<CpuTuning> all = {from};
  for (const auto& value : values) {
    CpuTuning tuning = from;
    set(tuning, value);
    if (std::ranges::find(all, tuning) == all.end()) all.push_back(tuning);
  }
  return all;
}

template <GemmTuning CpuTuning::*kPart>
std::vector<CpuTuning> prefetch_candidates(const CpuTuning& from) {
  std::vector<GemmTuning> values = {{.prefetch = Prefetch::kNone}};
  for (const int distance : {1024, 4096, 2048, 512, 8192}) {
    for (const HintName& hint : kHints) values.push_back({.prefetch = hint.hint, .distance = distance});
  }
  return with_each(from, values, [](CpuTuning& t, const GemmTuning& value) { t.*kPart = value; });
}

std::vector<CpuTuning> run_candidates(const CpuTuning& from) {
  constexpr RunTuning kValues[] = {{16, 4}, {32, 4}, {8, 32}, {64, 2}, {32, 8}, {128, 1}, {4, 32}};
  return with_each(from, kValues, [](CpuTuning& t, const RunTuning& value) { t.runs = value; });
}

std::string run_words(const CpuTuning& t) {
  return fmt::format("runs of up to {} pairs, {} a thread", t.runs.longest, t.runs.a_thread);
}

// Nothing where it was not measured.
std::string expand_words(const CpuTuning& t) {
  std::string words;
  const auto add = [&](const char* what, int tokens) {
    if (tokens == kNeverExpand) words += fmt::format(", {} never expanded", what);
    if (tokens > 0 && tokens < kNeverExpand)
      words += fmt::format(", {} expanded once from {} tokens", what, tokens);
  };
  add("experts", t.experts.expand_tokens);
  add("dense", t.dense.expand_tokens);
  return words;
}

constexpr Tunable kTunables[] = {
    {"prefetch, experts", ProbedPart::kDown, prefetch_candidates<&CpuTuning::experts>,
     [](const CpuTuning& t) { return name_of(t.experts); }},
    {"prefetch, dense", ProbedPart::kDense, prefetch_candidates<&CpuTuning::dense>,
     [](const CpuTuning& t) { return name_of(t.dense); }},
    {"runs", ProbedPart::kExperts, run_candidates, run_words},
};

double best_of(const std::vector<double>& samples) {
  return samples.empty() ? std::numeric_limits<double>::infinity() : *std::ranges::min_element(samples);
}

// By how much the third best sample is above the best one, as a share. With fewer nobody knows: a tenth at
// least.
double noise_of(std::vector<double> samples) {
  constexpr double kUnknown = 0.1;
  if (samples.empty()) return kUnknown;
  std::ranges::sort(samples);
  const double third = samples[std::min<size_t>(2, samples.size() - 1)] / samples[0] - 1;
  return samples.size() < 3 ? std::max(kUnknown, third) : third;
}

// A quarter of the samples are quicker. Disturbances come and go in milliseconds, and so do stretches in
// which the memory is nobody else's: neither decides.
double quartile_of(std::vector<double> samples) {
  if (samples.empty()) return std::numeric_limits<double>::infinity();
  std::ranges::sort(samples);
  return samples[samples.size() / 4];
}

// Seconds over all counts, where those from `threshold` on are expanded once.
double seconds_with(const Samples& again, const Samples& once, int threshold) {
  double sum = 0;
  for (size_t i = 0; i < std::size(kExpandCounts); ++i)
    sum += quartile_of(kExpandCounts[i] < threshold ? again[i] : once[i]);
  return sum;
}

bool beats(const std::vector<double>& other, const std::vector<double>& first) {
  const size_t rounds = std::min(other.size(), first.size());
  size_t wins = 0;
  for (size_t i = 0; i < rounds; ++i) wins += other[i] < first[i];
  const double gain = rounds < 3 ? 0.1 : 0.03, n = static_cast<double>(rounds);
  return static_cast<double>(wins) >= (n + std::sqrt(n)) / 2 &&
         quartile_of(other) * (1 + gain) < quartile_of(first);
}

}  // namespace

std::string name_of(const GemmTuning& t) {
  return t.prefetch == Prefetch::kNone ? "none" : fmt::format("{}:{}", hint_of(t.prefetch).name, t.distance);
}

std::string words_of(const GemmTuning& t) {
  if (t.prefetch == Prefetch::kNone) return "no prefetch";
  return t.distance % 1024 == 0
             ? fmt::format("prefetch {} at {} KB", hint_of(t.prefetch).words, t.distance / 1024)
             : fmt::format("prefetch {} at {} bytes", hint_of(t.prefetch).words, t.distance);
}

Result<std::optional<GemmTuning>> parse_prefetch(std::string_view text) {
  if (text == "auto") return std::optional<GemmTuning>();
  if (const std::optional<GemmTuning> tuning = parse_hint(text)) return tuning;
  return invalid(
      "--cpu-prefetch '{}': use auto, none, or t0, t1 or nta and a distance of {} to {} bytes in steps of "
      "64, "
      "for example t0:1024",
      text, kLeastDistance, kMostDistance);
}

std::string words_of(const ChosenTuning& c) {
  const auto prefetch = [](const CpuTuning& t) {
    if (t.experts == t.dense) return words_of(t.experts);
    return fmt::format("{} (experts) and {} (dense)", words_of(t.experts), words_of(t.dense));
  };
  const auto source = [&]() -> std::string {
    switch (c.source) {
      case TuningSource::kStandard:
        return "not measured: the experts fit the caches";
      case TuningSource::kAsked:
        return "as asked for";
      case TuningSource::kMeasured:
        return "measured now";
      case TuningSource::kCached:
        return fmt::format("measured {}, cached", c.day);
    }
    return {};
  };
  return fmt::format("{}, {}{} ({})", prefetch(c.tuning), run_words(c.tuning), expand_words(c.tuning),
                     source());
}

std::span<const Tunable> tunables() { return kTunables; }

Samples race(size_t candidates, double budget, const std::function<double(size_t)>& time) {
  constexpr int kMostRounds = 31, kRoundsForAll = 3;
  constexpr double kFarBehind = 1.2;
  Samples samples(candidates);
  std::vector<size_t> alive(candidates);
  for (size_t i = 0; i < candidates; ++i) alive[i] = i;
  double spent = 0;
  for (int round = 0; round < kMostRounds && alive.size() > 1; ++round) {
    for (const size_t i : alive) {
      if (spent >= budget) return samples;
      samples[i].push_back(time(i));
      spent += samples[i].back();
    }
    if (round + 1 >= kRoundsForAll) {
      double best = std::numeric_limits<double>::infinity();
      for (const size_t i : alive) best = std::min(best, best_of(samples[i]));
      std::erase_if(alive, [&](size_t i) { return i != 0 && best_of(samples[i]) > kFarBehind * best; });
    }
    std::ranges::reverse(alive);
  }
  return samples;
}

size_t choose(const Samples& samples) {
  size_t best = 0;
  for (size_t i = 1; i < samples.size(); ++i) {
    if (beats(samples[i], samples[0]) && quartile_of(samples[i]) < quartile_of(samples[best])) best = i;
  }
  return best;
}

int expand_from(const Samples& again, const Samples& once, int standard) {
  const auto seconds = [&](int threshold) { return seconds_with(again, once, threshold); };
  int best = kNeverExpand;
  for (const int count : kExpandCounts) {
    if (seconds(count) < seconds(best)) best = count;
  }
  return seconds(standard) > kSlower * seconds(best) ? best : standard;
}

bool is_calm(const std::vector<double>& samples) { return noise_of(samples) < 0.1; }

std::string cpu_identity(std::string_view cpuinfo) {
  constexpr std::string_view kFields[] = {"vendor_id",   "cpu family", "model",           "model name",
                                          "stepping",    "microcode",  "CPU implementer", "CPU architecture",
                                          "CPU variant", "CPU part",   "CPU revision"};
  std::string identity;
  while (!cpuinfo.empty()) {
    const size_t end = cpuinfo.find('\n');
    const std::string_view line = cpuinfo.substr(0, end);
    cpuinfo.remove_prefix(end == std::string_view::npos ? cpuinfo.size() : end + 1);
    if (line.empty()) break;  // the first core's lines end here
    std::string_view name = line.substr(0, line.find(':'));
    name = name.substr(0, name.find_last_not_of(" \t") + 1);
    if (std::ranges::find(kFields, name) != std::end(kFields)) identity.append(line).append("\n");
  }
  return identity;
}

std::string cpu_identity() {
  std::ifstream in("/proc/cpuinfo");
  std::string first, line;
  while (std::getline(in, line) && !line.empty()) first.append(line).append("\n");
  return cpu_identity(first);
}

std::string tuning_cache_key(std::string_view cpu, const Kernels& kernels, int threads,
                             const TunedWeights& weights) {
  return fmt::format("moesaic cpu tuning {}\n{}kernels {}\nthreads {}\nweights {} {} {}\n", kVersion, cpu,
                     kernels.name, threads, format_name(weights.experts), format_name(weights.dense),
                     weights.cols);
}

std::string encode(const ChosenTuning& c) {
  return fmt::format("experts {}\ndense {}\nruns {} {}\nexpand {} {}\nday {}\n", name_of(c.tuning.experts),
                     name_of(c.tuning.dense), c.tuning.runs.longest, c.tuning.runs.a_thread,
                     c.tuning.experts.expand_tokens, c.tuning.dense.expand_tokens, c.day);
}

std::optional<ChosenTuning> decode(std::string_view text) {
  // Values by their places; that the text is what encode() writes of them is all there is to check.
  std::istringstream words{std::string(text)};
  std::string name, experts_hint, dense_hint, day;
  int longest = 0, a_thread = 0, experts_from = -1, dense_from = -1;
  words >> name >> experts_hint >> name >> dense_hint >> name >> longest >> a_thread >> name >>
      experts_from >> dense_from >> name >> day;
  std::optional<GemmTuning> experts = parse_hint(experts_hint), dense = parse_hint(dense_hint);
  const auto in_range = [](int v) { return v >= 1 && v <= kMostRun; };
  const auto is_count = [](int v) { return v >= 0 && v <= kNeverExpand; };
  if (!experts || !dense || !in_range(longest) || !in_range(a_thread) || !is_count(experts_from) ||
      !is_count(dense_from) || day.size() != 10 || day.find_first_not_of("-0123456789") != std::string::npos)
    return {};
  experts->expand_tokens = experts_from;
  dense->expand_tokens = dense_from;
  ChosenTuning chosen{.tuning = {.experts = *experts, .dense = *dense, .runs = {longest, a_thread}},
                      .source = TuningSource::kCached,
                      .day = day};
  if (encode(chosen) != text) return {};
  return chosen;
}

int64_t last_level_cache_bytes() {
  constexpr int64_t kUnknown = 32 << 20;
  const auto read = [](int index, const char* what) {
    std::ifstream in(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/{}", index, what));
    std::string text;
    std::getline(in, text);
    return text;
  };
  int64_t bytes = 0, sharers = 1;
  for (int index = 0; index < 5; ++index) {
    const std::string size = read(index, "size");  // "32768K"
    const std::optional<int> kib =
        size.ends_with('K') ? parse_int(size.substr(0, size.size() - 1)) : std::nullopt;
    if (!kib) continue;
    bytes = int64_t{*kib} << 10;
    sharers = 0;
    for (const char digit : read(index, "shared_cpu_map")) {
      if (digit >= '0' && digit <= '9') sharers += std::popcount(static_cast<unsigned>(digit - '0'));
      if (digit >= 'a' && digit <= 'f') sharers += std::popcount(static_cast<unsigned>(digit - 'a' + 10));
    }
  }
  const int64_t cores = std::thread::hardware_concurrency();
  return bytes > 0 ? bytes * std::max<int64_t>(1, cores / std::max<int64_t>(1, sharers)) : kUnknown;
}

}  // namespace moesaic::cpu
