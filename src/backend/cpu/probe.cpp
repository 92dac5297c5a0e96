#include "backend/cpu/probe.h"

#include <chrono>
#include <ctime>

#include "base/error.h"

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

CandidateTiming timing_of(const Tunable& tunable, const CpuTuning& tuning, std::vector<double> samples,
                          double bytes) {
  CandidateTiming t{.setting = tunable.name, .value = tunable.value(tuning)};
  if (samples.empty()) return t;
  std::ranges::sort(samples);
  t.best_gb_s = bytes / samples.front() / 1e9;
  t.median_gb_s = bytes / samples[samples.size() / 2] / 1e9;
  return t;
}

}  // namespace

DecodeProbe::DecodeProbe(const Kernels& kernels, ThreadPool& pool, std::vector<Workspace>& workspaces,
                         std::vector<ExpertWeights> layers, const PackedMatrix& head, int experts, int top_k,
                         Act format)
    : kernels_(kernels),
      pool_(pool),
      workspaces_(workspaces),
      layers_(std::move(layers)),
      head_(head),
      experts_(experts),
      top_k_(top_k) {
  const auto assign = [&](ActRows& act, Act as, int64_t cols) {
    std::vector<float> row(cols);
    for (int64_t i = 0; i < cols; ++i) row[i] = static_cast<float>(i % 7) - 3;
    act.assign(kernels_, pool_, as, row.data(), cols, 1, cols);
  };
  assign(gate_up_act_, format, layers_[0].gate_up->cols);
  assign(down_act_, format, layers_[0].down->cols);
  assign(head_act_, act_format(head_.pack), head_.cols);
}

int64_t DecodeProbe::head_pairs() const {
  const double pair_bytes = head_.bytes() / static_cast<double>(head_.pairs());
  return std::clamp(static_cast<int64_t>(pass_bytes(ProbedPart::kDown) / pair_bytes), int64_t{1},
                    head_.pairs());
}

double DecodeProbe::pass_bytes(ProbedPart part) const {
  if (part == ProbedPart::kDense)
    return head_.bytes() / static_cast<double>(head_.pairs()) * static_cast<double>(head_pairs());
  const double gate_up = part == ProbedPart::kExperts ? layers_[0].gate_up->bytes() : 0;
  return (gate_up + layers_[0].down->bytes()) * top_k_ / experts_;
}

void DecodeProbe::run(const PackedMatrix& m, const ActRows& act, int first, const CpuTuning& tuning) {
  const int64_t pairs = m.pairs() / experts_;
  for_each_pair(pool_, top_k_, pairs, tuning.runs, [&](int64_t section, int64_t pair, int thread) {
    run_pair(kernels_, m, (first + section) * pairs + pair, act.view(), 1, workspaces_[thread],
             tuning.experts);
  });
}

void DecodeProbe::run_head(int64_t pass, const CpuTuning& tuning) {
  const int64_t pairs = head_pairs(), first = pass % (head_.pairs() / pairs) * pairs;
  for_each_pair(pool_, 1, pairs, tuning.runs, [&](int64_t, int64_t pair, int thread) {
    run_pair(kernels_, head_, first + pair, head_act_.view(), 1, workspaces_[thread], tuning.dense);
  });
}

double DecodeProbe::seconds(const CpuTuning& tuning, ProbedPart part) {
  const int64_t number = next_++, pass = number % passes();
  const ExpertWeights& layer = layers_[pass % std::ssize(layers_)];
  const int first = static_cast<int>(pass / std::ssize(layers_)) * top_k_;
  const auto start = std::chrono::steady_clock::now();
  if (part == ProbedPart::kDense) run_head(number, tuning);
  if (part == ProbedPart::kExperts) run(*layer.gate_up, gate_up_act_, first, tuning);
  if (part != ProbedPart::kDense) run(*layer.down, down_act_, first, tuning);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
      result.candidates.push_back(
          timing_of(tunable, candidates[i], samples[i], probe.pass_bytes(tunable.part)));
      result.candidates.back().chosen = i == chosen;
    }
    result.chosen.calm &= is_calm(samples[chosen]);
    tuning = candidates[chosen];
  }
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
