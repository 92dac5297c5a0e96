// Projects the time of decoding on a device that is not at hand, from bytes, instructions and data sheets:
// for planning, and to be compared with a measurement once there is one. Never a measurement itself.
//
// An op takes the longest of three: its weights' bytes at the memory's bandwidth, its kernels' instructions
// at one a cycle and scheduler, its block-scaled MMAs at the data sheet's rate. Attention's keys are not
// counted, nor embedding and norms.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic {

// By its data sheet.
struct DeviceModel {
  std::string_view name, label;
  double bytes_per_second = 0;
  double fp8_flops = 0;  // dense, sums in F32; E2M1 x E4M3 runs at this rate
  int multiprocessors = 0;
  double clock = 0;  // Hz
};
std::span<const DeviceModel> device_models();
// Null for an unknown name.
const DeviceModel* find_device_model(std::string_view name);

struct ProjectedOp {
  std::string_view name;  // as Backend's ops
  int calls = 0;          // in a step
  // The cost of a call.
  double bytes = 0;         // bytes of weights
  double instructions = 0;  // the warps'; 0 where the product does not go through the block-scaled MMA
  double mmas = 0;          // MMAs of m16n8k32
  // The same kernels' figures on an H200, with the instruction emulated: seconds that pass whatever the size,
  // and the share of the bandwidth for the rest.
  double start = 0, share = 1;
};

inline constexpr int kProjectedTokens = 32;  // at most: of larger tiles nothing is counted
struct ProjectedFormats {
  Format dense = Format::kBF16, head = Format::kBF16, experts = Format::kMxfp4;
};
std::vector<ProjectedOp> decode_ops(const ModelConfig& config, const ProjectedFormats& formats, int tokens);

// Seconds of a call by each of the three, and the longest.
struct ProjectedTime {
  double memory = 0, issue = 0, mma = 0;
  double floor() const;
};
ProjectedTime projected_time(const ProjectedOp& op, const DeviceModel& device);
// Seconds of a call, with the op's share and start.
double as_on_hopper(const ProjectedOp& op, const DeviceModel& device);

}  // namespace moesaic
