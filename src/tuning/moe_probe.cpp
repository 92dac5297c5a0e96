#include "tuning/moe_probe.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr double kFarBehind = 1.8;  // by the figures: nothing so slow was ever the quickest on another device
constexpr double kGain = 1.04;      // the quickest of a few samples differs by less from one try to the next

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

size_t that_take(std::span<const MoeKernelConfig> configs, int tokens) {
  return static_cast<size_t>(
      std::ranges::count_if(configs, [&](const MoeKernelConfig& c) { return takes(c, tokens); }));
}

// Those worth a measurement, the figures' choice first.
std::vector<RankedConfig> contenders(const MoeShape& shape, std::span<const MoeKernelConfig> configs) {
  std::vector<RankedConfig> ranked = rank_configs(shape, configs);
  std::erase_if(ranked, [best = ranked.empty() ? 0 : ranked.front().work.seconds](const RankedConfig& c) {
    return c.work.seconds > kFarBehind * best;
  });
  return ranked;
}

// The last one, then every second one before it; then those between them, which take the kernel of a
// neighbour if the time is up.
std::vector<int> far_apart_first(const std::vector<int>& tokens) {
  std::vector<int> order;
  for (size_t from = 1; from <= 2; ++from) {
    for (size_t back = from; back <= tokens.size(); back += 2) order.push_back(tokens[tokens.size() - back]);
  }
  return order;
}

}  // namespace

std::vector<int> probed_tokens(std::span<const MoeKernelConfig> configs, int most_tokens) {
  std::vector<int> tokens;
  for (int n = 1; n <= std::min(most_tokens, kMostProbed); n *= 2) {
    if (that_take(configs, n) > 1) tokens.push_back(n);  // else there is no choice
  }
  return tokens;
}

bool covers(const std::vector<TunedStep>& steps, std::span<const MoeKernelConfig> configs, int most_tokens) {
  const std::vector<int> wanted = probed_tokens(configs, most_tokens);
  return wanted.empty() || (!steps.empty() && steps.back().tokens >= wanted.back());
}

Result<std::vector<TunedStep>> probe_moe(
    const MoeShape& shape, std::span<const MoeKernelConfig> configs, std::vector<TunedStep> known,
    const ProbeLimits& limits,
    const std::function<Result<double>(int tokens, const MoeKernelConfig& config)>& time) {
  const auto clock = limits.clock ? limits.clock : steady_seconds;
  const double start = clock();
  const int last = known.empty() ? 0 : known.back().tokens;
  for (const int tokens : far_apart_first(probed_tokens(configs, limits.most_tokens))) {
    if (tokens <= last) continue;
    MoeShape at = shape;
    at.tokens = tokens;
    std::optional<TunedStep> best;
    double first = 0;
    for (const RankedConfig& c : contenders(at, configs)) {
      if (clock() - start > limits.seconds) break;
      ASSIGN_OR_RETURN(const double seconds, time(tokens, *c.config));
      if (!best) first = seconds;
      if (!best || (kGain * seconds < first && seconds < best->seconds))
        best = TunedStep{tokens, std::string(c.config->name), seconds};
    }
    if (best) known.push_back(*best);
  }
  std::ranges::sort(known, {}, &TunedStep::tokens);
  return known;
}

}  // namespace moesaic
