// How weights are read and expanded: which prefetch hint, how far ahead, how many panels in a row; from how
// many tokens on they are expanded once for all. What is best differs between CPUs by a factor of three and
// follows from no data sheet, so it is measured when a model is loaded (probe.h) and kept in a file for each
// CPU. Nothing here changes a result.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/kernels.h"
#include "base/file_cache.h"
#include "moesaic/status.h"

namespace moesaic::cpu {

// for_each_pair (gemm.h): one thread reads `longest` panel pairs in a row at most, fewer where that gave it
// less than `a_thread` such runs, on the mean.
struct RunTuning {
  int longest = 8, a_thread = 32;
  bool operator==(const RunTuning&) const = default;
};

struct CpuTuning {
  GemmTuning experts, dense;  // dense: projections and lm_head
  RunTuning runs = {16, 8};
  bool operator==(const CpuTuning&) const = default;

  // Many tokens of a panel are limited by arithmetic: short runs, for balance.
  RunTuning runs_for(int64_t tokens) const { return tokens <= kPanelTokens ? runs : RunTuning{}; }
  static constexpr int kPanelTokens = 8;
};

// "t0:1024" or "none"; and for people: "prefetch T0 at 1 KB", "no prefetch".
std::string name_of(const GemmTuning& tuning);
std::string words_of(const GemmTuning& tuning);
// The value of --cpu-prefetch: none for auto.
Result<std::optional<GemmTuning>> parse_prefetch(std::string_view text);

// Where the settings in use come from.
enum class TuningSource { kStandard, kAsked, kMeasured, kCached };
struct ChosenTuning {
  CpuTuning tuning;
  TuningSource source = TuningSource::kStandard;
  std::string day;   // the day of the measurement: 2026-11-23
  bool calm = true;  // the measurement was steady enough to be kept
};
// "prefetch T0 at 1 KB (experts) and no prefetch (dense), runs of up to 8 pairs, 16 a thread, experts
// expanded once from 12 tokens (measured 2026-11-23, cached)".
std::string words_of(const ChosenTuning& chosen);

// ---- choosing ----

// The work of one token that a sample of a setting times: the second product of a layer's experts alone, a
// fraction of a millisecond that other programs often leave alone; both; or as much of lm_head as the second
// product.
enum class ProbedPart { kDown, kExperts, kDense };

// One setting and the values it may have, each as a whole tuning; the first one is the tuning that it starts
// from. A kernel table with a setting of its own adds it to tunables().
struct Tunable {
  const char* name;
  ProbedPart part;
  std::vector<CpuTuning> (*candidates)(const CpuTuning& from);
  std::string (*value)(const CpuTuning& tuning);
};
std::span<const Tunable> tunables();

// Samples of each candidate, in turn and in alternating order, so that a disturbance meets all of them, until
// `budget` seconds are spent; those far behind after three rounds are dropped. time(i): seconds of candidate
// i.
using Samples = std::vector<std::vector<double>>;
Samples race(size_t candidates, double budget, const std::function<double(size_t)>& time);
// The candidate to use: the quickest, by the quartile of its samples, of those that beat the first one: by
// more than 3% (10% with fewer than three rounds), and in more rounds than chance would give; else the first
// one.
size_t choose(const Samples& samples);
// True if the three best samples of a candidate agree to 10%.
bool is_calm(const std::vector<double>& samples);

// Token counts at which expanding once is compared with expanding again, ascending.
inline constexpr int kExpandCounts[] = {2, 4, 8, 12, 16, 24, 32, 48};
inline constexpr int kNeverExpand = 1 << 20;
// The count from which on it is to be expanded once: the one of kExpandCounts, or kNeverExpand, that takes
// the least time over all counts by the quartiles of the samples; `standard` unless that is slower by 2%.
// again, once: samples of each count.
int expand_from(const Samples& again, const Samples& once, int standard);

// ---- keeping ----

// A measurement holds for these: CPU, microcode, kernels, threads, weights.
struct TunedWeights {
  Format experts, dense;
  int64_t cols;
};
std::string tuning_cache_key(std::string_view cpu, const Kernels& kernels, int threads,
                             const TunedWeights& weights);
// The CPU's own description of itself in /proc/cpuinfo: model and microcode of its first core.
std::string cpu_identity(std::string_view cpuinfo);
std::string cpu_identity();

std::string encode(const ChosenTuning& chosen);
// Nothing where the text is not exactly one that encode() writes, or a value is out of range.
std::optional<ChosenTuning> decode(std::string_view text);

// Bytes of all last-level caches together, by sysfs; 32 MiB where it does not say.
int64_t last_level_cache_bytes();

}  // namespace moesaic::cpu
