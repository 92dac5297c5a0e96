#include "backend/cpu/probe.h"

#include <chrono>
#include <ctime>

#include "base/error.h"
#include "base/seconds.h"

namespace moesaic::cpu {
namespace {

constexpr double kSecondsAtLoad = 0.18;

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  gmtime_r(&now, &date);
  return fmt::format("{:04}-{:02}-{:02}", date.tm_year + 1900, date.tm_mon + 1, date.tm_mday);
}

FileCache cache_in(const std::string& folder) {
  return FileCache(folder.empty() ? folder : folder + "/cpu", 1u << 20);
}

std::string key_of(const DecodeProbe& probe, const Kernels& kernels, int threads) {
  return tuning_cache_key(cpu_identity(), kernels, threads, probe.weights());
}

CandidateTiming timing_of(std::vector<double> samples, double bytes) {
  CandidateTiming t;
  if (samples.empty()) return t;
  std::ranges::sort(samples);
  t.best_gb_s = bytes / samples.front() / 1e9;
  t.median_gb_s = bytes / samples[samples.size() / 2] / 1e9;
  return t;
}

template <typename Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return seconds_since(start);
}

}  // namespace

DecodeProbe::DecodeProbe(const Kernels& kernels, ThreadPool& pool, std::vector<Workspace>& workspaces,
                         std::vector<ExpertWeights> layers, const PackedMatrix& head, int experts, int top_k,
                         const ExpertActs& acts)
    : kernels_(kernels),
      pool_(pool),
      workspaces_(workspaces),
      layers_(std::move(layers)),
      head_(head),
      experts_(experts),
      top_k_(top_k) {
  const auto assign = [&](ActRows& act, Act as, int64_t cols) {
    constexpr int kRows = *std::rbegin(kExpandCounts);
    std::vector<float> rows(kRows * cols);
    for (int64_t i = 0; i < kRows * cols; ++i) rows[i] = static_cast<float>(i % 7) - 3;
    act.assign(kernels_, pool_, as, rows.data(), cols, kRows, cols);
  };
  const ExpertWeights first = layers_[0];
  std::erase_if(layers_, [&](const ExpertWeights& layer) {
    return layer.gate_up->format != first.gate_up->format || layer.down->format != first.down->format;
  });
  assign(gate_up_act_, acts.gate_up, first.gate_up->cols);
  assign(down_act_, acts.down, first.down->cols);
  assign(head_act_, act_format(head_.format, kernels_), head_.cols);
}

int64_t DecodeProbe::head_pairs(double bytes) const {
  const double pair_bytes = head_.bytes() / static_cast<double>(head_.pairs());
  return std::clamp(static_cast<int64_t>(bytes / pair_bytes), int64_t{1}, head_.pairs());
}

double DecodeProbe::head_bytes(double about) const {
  return head_.bytes() / static_cast<double>(head_.pairs()) * static_cast<double>(head_pairs(about));
}

double DecodeProbe::pass_bytes(ProbedPart part) const {
  if (part == ProbedPart::kDense) return head_bytes(pass_bytes(ProbedPart::kDown));
  const double gate_up = part == ProbedPart::kExperts ? layers_[0].gate_up->bytes() : 0;
  return (gate_up + layers_[0].down->bytes()) * top_k_ / experts_;
}

void DecodeProbe::run(const PackedMatrix& m, const ActRows& act, int first, int experts, int tokens,
                      const CpuTuning& tuning) {
  const int64_t pairs = m.pairs() / experts_;
  for_each_pair(pool_, experts, pairs, tuning.runs_for(tokens),
                [&](int64_t section, int64_t pair, int thread) {
                  run_pair(kernels_, m, (first + section) * pairs + pair, act.view(), tokens,
                           workspaces_[thread], tuning.experts);
                });
}

void DecodeProbe::run_head(int64_t pass, int64_t pairs, int tokens, const CpuTuning& tuning) {
  const int64_t first = pass % (head_.pairs() / pairs) * pairs;
  for_each_pair(pool_, 1, pairs, tuning.runs_for(tokens), [&](int64_t, int64_t pair, int thread) {
    run_pair(kernels_, head_, first + pair, head_act_.view(), tokens, workspaces_[thread], tuning.dense);
  });
}

double DecodeProbe::seconds(const CpuTuning& tuning, ProbedPart part) {
  const int64_t number = next_++, pass = number % passes();
  const ExpertWeights& layer = layers_[pass % std::ssize(layers_)];
  const int first = static_cast<int>(pass / std::ssize(layers_)) * top_k_;
  return seconds_of([&] {
    if (part == ProbedPart::kDense) run_head(number, head_pairs(pass_bytes(ProbedPart::kDown)), 1, tuning);
    if (part == ProbedPart::kExperts) run(*layer.gate_up, gate_up_act_, first, top_k_, 1, tuning);
    if (part != ProbedPart::kDense) run(*layer.down, down_act_, first, top_k_, 1, tuning);
  });
}

double DecodeProbe::seconds_of_tokens(const CpuTuning& tuning, ProbedPart part, int tokens) {
  const int64_t number = next_++, layer = number % std::ssize(layers_);
  const PackedMatrix& down = *layers_[layer].down;
  const int expert = static_cast<int>(number / std::ssize(layers_) % experts_);
  return seconds_of([&] {
    if (part == ProbedPart::kDense) run_head(number, head_pairs(down.bytes() / experts_), tokens, tuning);
    if (part == ProbedPart::kDown) run(down, down_act_, expert, 1, tokens, tuning);
  });
}

double DecodeProbe::expand_bytes(ProbedPart part) const {
  const double bytes = layers_[0].down->bytes() / experts_;
  return part == ProbedPart::kDown ? bytes : head_bytes(bytes);
}

bool DecodeProbe::expands(ProbedPart part) const {
  const bool dense = part == ProbedPart::kDense;
  const Format pack = dense ? head_.format : layers_[0].down->format;
  const Act act = (dense ? head_act_ : down_act_).view().format;
  if (act == Act::kBlockFloat) return true;
  return act == Act::kInt8 && (pack == Format::kMxfp4 || (pack == Format::kQ8_0 && kernels_.expands_int8));
}

namespace {

// A result for each of kExpandCounts.
struct ExpansionSamples {
  Samples again = Samples(std::size(kExpandCounts)), once = again;
};

// Both forms at every count, in turn: for about so many seconds, at least three rounds.
ExpansionSamples sample_expansion(DecodeProbe& probe, ProbedPart part, double seconds,
                                  const CpuTuning& from) {
  constexpr size_t kLeastRounds = 3;
  CpuTuning again = from, once = from;
  for (GemmTuning CpuTuning::*of : {&CpuTuning::experts, &CpuTuning::dense})
    (again.*of).expand_tokens = kNeverExpand, (once.*of).expand_tokens = 1;
  ExpansionSamples samples;
  double spent = 0;
  const auto sample = [&](const CpuTuning& tuning, size_t count, Samples& out) {
    out[count].push_back(probe.seconds_of_tokens(tuning, part, kExpandCounts[count]));
    spent += out[count].back();
  };
  while (spent < seconds || samples.once.back().size() < kLeastRounds) {
    for (size_t i = 0; i < std::size(kExpandCounts); ++i)
      sample(again, i, samples.again), sample(once, i, samples.once);
  }
  return samples;
}

// kDown: the threshold of experts; kDense: of dense matrices.
void measure_expansion(DecodeProbe& probe, ProbedPart part, double seconds, Measurement& result) {
  const bool dense = part == ProbedPart::kDense;
  CpuTuning& tuning = result.chosen.tuning;
  const ExpansionSamples samples = sample_expansion(probe, part, seconds, tuning);
  const int threshold = expand_from(samples.again, samples.once, probe.standard_expand_tokens());
  (dense ? tuning.dense : tuning.experts).expand_tokens = threshold;
  const auto add = [&](int count, const std::vector<double>& times, const char* value, bool chosen) {
    CandidateTiming& t = result.candidates.emplace_back(timing_of(times, probe.expand_bytes(part)));
    t.setting = fmt::format("{} tokens, {}", count, dense ? "dense" : "experts");
    t.value = value, t.chosen = chosen;
  };
  for (size_t i = 0; i < std::size(kExpandCounts); ++i) {
    const bool once = kExpandCounts[i] >= threshold;
    add(kExpandCounts[i], samples.again[i], "expanded again", !once);
    add(kExpandCounts[i], samples.once[i], "expanded once", once);
  }
}

}  // namespace

double decode_bandwidth(DecodeProbe& probe, ThreadPool& pool, const CpuTuning& tuning,
                        std::vector<ReadPattern>& patterns) {
  constexpr size_t kEnough = 2u << 30;
  MemoryByNode memory(pool.nodes());
  for (int node = 0; node < pool.nodes(); ++node) {
    size_t bytes = 0;
    for (const ExpertWeights& layer : probe.layers()) {
      for (const PackedMatrix* m : {layer.gate_up, layer.down}) {
        if (bytes >= kEnough / pool.nodes()) break;
        const auto [first, end] = m->node_slots(node);
        memory[node].emplace_back(m->data.as() + first * m->data_stride, (end - first) * m->data_stride);
        bytes += memory[node].back().size();
      }
    }
  }
  double best = measure_read_bandwidth(memory, pool, patterns);
  for (int pass = 0; best > 0 && pass < 8; ++pass)
    best = std::max(best, probe.pass_bytes() / probe.seconds(tuning) / 1e9);
  return best;
}

Measurement measure_tuning(DecodeProbe& probe, double seconds) {
  Measurement result{.chosen = {.source = TuningSource::kMeasured, .day = today()}};
  probe.seconds({});  // wakes the threads
  CpuTuning& tuning = result.chosen.tuning;
  for (const Tunable& tunable : tunables()) {
    const std::vector<CpuTuning> candidates = tunable.candidates(tuning);
    const Samples samples = race(candidates.size(), seconds / static_cast<double>(tunables().size()),
                                 [&](size_t i) { return probe.seconds(candidates[i], tunable.part); });
    const size_t chosen = choose(samples);
    for (size_t i = 0; i < candidates.size(); ++i) {
      CandidateTiming& t =
          result.candidates.emplace_back(timing_of(samples[i], probe.pass_bytes(tunable.part)));
      t.setting = tunable.name, t.value = tunable.value(candidates[i]);
      t.chosen = i == chosen;
    }
    result.chosen.calm &= is_calm(samples[chosen]);
    tuning = candidates[chosen];
  }
  const bool experts = probe.expands(ProbedPart::kDown), dense = probe.expands(ProbedPart::kDense);
  const double half = seconds / 2 / (experts && dense ? 2 : 1);
  if (experts) measure_expansion(probe, ProbedPart::kDown, half, result);
  if (dense) measure_expansion(probe, ProbedPart::kDense, half, result);
  return result;
}

bool fits_caches(const DecodeProbe& probe) {
  return probe.all_bytes() < 2 * static_cast<double>(std::max<int64_t>(last_level_cache_bytes(), 32 << 20));
}

ChosenTuning tuning_for(DecodeProbe& probe, const Kernels& kernels, int threads, const std::string& folder) {
  if (const auto kept = cache_in(folder).find(key_of(probe, kernels, threads))) {
    if (const std::optional<ChosenTuning> chosen = decode(*kept)) return *chosen;
  }
  if (fits_caches(probe)) return {};
  ChosenTuning chosen = measure_tuning(probe, kSecondsAtLoad).chosen;
  // A disturbed measurement is good for this run, not for all later ones; and a folder that cannot be written
  // means that the next load measures again.
  if (chosen.calm) static_cast<void>(keep_tuning(probe, kernels, threads, folder, chosen));
  return chosen;
}

Status keep_tuning(const DecodeProbe& probe, const Kernels& kernels, int threads, const std::string& folder,
                   const ChosenTuning& chosen) {
  return cache_in(folder).put(key_of(probe, kernels, threads), encode(chosen));
}

std::string tuning_file(const DecodeProbe& probe, const Kernels& kernels, int threads,
                        const std::string& folder) {
  return cache_in(folder).path_of(key_of(probe, kernels, threads));
}

}  // namespace moesaic::cpu
