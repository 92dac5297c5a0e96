// A short measurement of the experts' kernels, for a device that nobody has tuned: the figures of
// moe_kernels.cpp are those of one device, and on another one with the same kernels another tile may be the
// quickest.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "moesaic/status.h"
#include "tuning/moe_kernels.h"
#include "tuning/tuning_file.h"

namespace moesaic {

// Numbers of tokens that a probe measures for steps of up to `most_tokens`, ascending. Those beyond
// kMostProbed take the kernel of the last one.
inline constexpr int kMostProbed = 2048;
std::vector<int> probed_tokens(std::span<const MoeKernelConfig> configs, int most_tokens);

// True if the steps that were kept cover every number of tokens that a step may have.
bool covers(const std::vector<TunedStep>& steps, std::span<const MoeKernelConfig> configs, int most_tokens);

struct ProbeLimits {
  int most_tokens = 0;                 // most tokens of a step
  double seconds = 3;                  // after these nothing more is begun: the 120b's take some four
  std::function<double()> clock = {};  // seconds since some moment; by default a steady clock
};
// time: the seconds of a layer's experts with a config that takes so many tokens. Numbers of tokens up to
// `known`'s last one are not measured again. A kernel is chosen over the one that the figures choose only
// where it is quicker by more than measurements differ. Numbers of tokens for which there
// was no time have no step: nearest_step() then gives a neighbour's kernel, or none.
Result<std::vector<TunedStep>> probe_moe(
    const MoeShape& shape, std::span<const MoeKernelConfig> configs, std::vector<TunedStep> known,
    const ProbeLimits& limits,
    const std::function<Result<double>(int tokens, const MoeKernelConfig& config)>& time);

}  // namespace moesaic
