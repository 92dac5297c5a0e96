#include "tuning/moe_kernels.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

// Calls body(n, probability) for the numbers of tokens that one expert may get, each token choosing it with
// probability top_k / experts; what is less likely than 1e-9 is left out.
template <typename Body>
void for_counts(const MoeShape& s, Body&& body) {
  const double p = std::min(1.0, static_cast<double>(s.top_k) / s.experts);
  const double mean = s.tokens * p, deviation = std::sqrt(mean * (1 - p));
  const int first = std::max(0, static_cast<int>(mean - 8 * deviation - 8));
  const int last = std::min(s.tokens, static_cast<int>(mean + 8 * deviation + 8));
  const auto log_factorial = [](int n) { return std::lgamma(n + 1.0); };
  for (int n = first; n <= last; ++n) {
    const double log_p = log_factorial(s.tokens) - log_factorial(n) - log_factorial(s.tokens - n) +
                         (n > 0 ? n * std::log(p) : 0) + (n < s.tokens ? (s.tokens - n) * std::log1p(-p) : 0);
    if (log_p > std::log(1e-9)) body(n, std::exp(log_p));
  }
}

double flops_of(const MoeShape& s, double rows) { return 6.0 * rows * s.hidden * s.intermediate; }

int round_up(int n, int grain) { return (n + grain - 1) / grain * grain; }

// Fitted to what `moesaic plan` measured on an H200, 2026-11-22: at the steps of docs/lab the
// kernel with the least time is within 6% of the quickest. A work tile of gemm_wgmma is as wide as its rows,
// so that its tile only bounds it.
constexpr MoeKernelConfig kSlabConfigs[] = {
    {"decode", MoeKernel::kDecode, 1, 8, 0, 1, 7.0e-6, 3.60e12, 1e15},
    {"split-k 16", MoeKernel::kSplitK, 9, 512, 16, 8, 16e-6, 3.7e12, 160e12},
    {"wgmma 32", MoeKernel::kWgmma, 9, 0, 32, 16, 26e-6, 2.74e12, 230e12},
    {"wgmma 64", MoeKernel::kWgmma, 9, 0, 64, 16, 26e-6, 2.5e12, 300e12},
    {"wgmma 128", MoeKernel::kWgmma, 9, 0, 128, 16, 36e-6, 2.58e12, 440e12},
};
// Without wgmma. The figures are the H200's; the last one's rate is not measured: shared memory can feed it
// 474 TFLOP/s there, of which 60% are taken.
constexpr MoeKernelConfig kMmaSlabConfigs[] = {
    kSlabConfigs[0],
    {"split-k 16", MoeKernel::kSplitK, 9, 0, 16, 8, 16e-6, 3.7e12, 160e12},
    {"mma 64", MoeKernel::kMma, 9, 0, 64, 16, 26e-6, 2.5e12, 280e12},
};
// Few rows stay in F16.
constexpr MoeKernelConfig kFp8SlabConfigs[] = {
    kSlabConfigs[0],
    kSlabConfigs[1],
    {"wgmma fp8 32", MoeKernel::kWgmmaFp8, 9, 0, 32, 16, 26e-6, 2.74e12, 300e12},
    {"wgmma fp8 64", MoeKernel::kWgmmaFp8, 9, 0, 64, 16, 26e-6, 2.5e12, 480e12},
    {"wgmma fp8 128", MoeKernel::kWgmmaFp8, 9, 0, 128, 16, 36e-6, 2.58e12, 700e12},
    {"wgmma fp8 192", MoeKernel::kWgmmaFp8, 9, 0, 192, 16, 36e-6, 2.58e12, 750e12},
};
constexpr MoeKernelConfig kGemmConfigs[] = {
    {"gemm 8", MoeKernel::kGemm, 1, 0, 8, 8, 15e-6, 2.6e12, 40e12},
    {"gemm 16", MoeKernel::kGemm, 1, 0, 16, 16, 15e-6, 2.6e12, 45e12},
    {"gemm 32", MoeKernel::kGemm, 1, 0, 32, 32, 15e-6, 2.6e12, 50e12},
    {"gemm 64", MoeKernel::kGemm, 1, 0, 64, 64, 15e-6, 2.0e12, 100e12},
    {"gemm 128", MoeKernel::kGemm, 1, 0, 128, 128, 15e-6, 2.0e12, 120e12},
};

// Few rows stay in F16. Not measured on 8.9, which FP8 is for: twice F16's rate, as its data sheets have it.
constexpr MoeKernelConfig kFp8GemmConfigs[] = {
    kGemmConfigs[0],
    kGemmConfigs[1],
    kGemmConfigs[2],
    {"gemm fp8 64", MoeKernel::kGemmFp8, 1, 0, 64, 64, 15e-6, 2.0e12, 200e12},
    {"gemm fp8 128", MoeKernel::kGemmFp8, 1, 0, 128, 128, 15e-6, 2.0e12, 240e12},
};

// Not measured on the devices that they are for: the bandwidth and the rate of an RTX PRO 6000's data sheet,
// of which tiles for few tokens reach 75 and 60%, large ones 40%.
constexpr double kSm120Bandwidth = 0.75 * 1.79e12;
constexpr MoeKernelConfig kW4A8Configs[] = {
    {"w4a8 8", MoeKernel::kW4A8, 1, 0, 8, 8, 8e-6, kSm120Bandwidth, 60e12},
    {"w4a8 16", MoeKernel::kW4A8, 1, 0, 16, 16, 8e-6, kSm120Bandwidth, 110e12},
    {"w4a8 32", MoeKernel::kW4A8, 1, 0, 32, 32, 8e-6, kSm120Bandwidth, 180e12},
    {"w4a8 64", MoeKernel::kW4A8, 1, 0, 64, 16, 10e-6, 0.9 * kSm120Bandwidth, 240e12},
    {"w4a8 128", MoeKernel::kW4A8, 1, 0, 128, 32, 10e-6, 0.9 * kSm120Bandwidth, 300e12},
    {"w4a8 prefill", MoeKernel::kW4A8Prefill, 1, 0, 128, 64, 10e-6, 0.8 * kSm120Bandwidth, 360e12},
};
// The tiles of twice the columns, at half their rate for rows.
constexpr MoeKernelConfig kW4A8x2Configs[] = {
    {"w4a8x2 8", MoeKernel::kW4A8, 1, 0, 8, 8, 8e-6, kSm120Bandwidth, 55e12},
    {"w4a8x2 16", MoeKernel::kW4A8, 1, 0, 16, 16, 8e-6, kSm120Bandwidth, 90e12},
    {"w4a8x2 32", MoeKernel::kW4A8, 1, 0, 32, 8, 10e-6, 0.9 * kSm120Bandwidth, 120e12},
    {"w4a8x2 64", MoeKernel::kW4A8, 1, 0, 64, 16, 10e-6, 0.9 * kSm120Bandwidth, 150e12},
    {"w4a8x2 prefill", MoeKernel::kW4A8Prefill, 1, 0, 64, 32, 10e-6, 0.8 * kSm120Bandwidth, 180e12},
};

// Fitted to what docs/lab has for an H200 and 128 experts, 2026-11-21: within 8%.
constexpr MoeKernelConfig kEmulatedConfigs[] = {
    {"w4a8 8", MoeKernel::kW4A8, 1, 0, 8, 8, 27e-6, 2.9e12, 76e12},
    {"w4a8 16", MoeKernel::kW4A8, 1, 0, 16, 16, 25e-6, 2.3e12, 112e12},
    {"w4a8 32", MoeKernel::kW4A8, 1, 0, 32, 32, 26e-6, 1.13e12, 140e12},
    {"w4a8 64", MoeKernel::kW4A8, 1, 0, 64, 16, 37e-6, 0.81e12, 95e12},
    {"w4a8 128", MoeKernel::kW4A8, 1, 0, 128, 32, 52e-6, 0.52e12, 106e12},
    {"w4a8 prefill", MoeKernel::kW4A8Prefill, 1, 0, 128, 64, 59e-6, 0.64e12, 129e12},
};
constexpr MoeKernelConfig kEmulatedX2Configs[] = {
    {"w4a8x2 8", MoeKernel::kW4A8, 1, 0, 8, 8, 25e-6, 2.3e12, 56e12},
    {"w4a8x2 16", MoeKernel::kW4A8, 1, 0, 16, 16, 26e-6, 1.13e12, 70e12},
    {"w4a8x2 32", MoeKernel::kW4A8, 1, 0, 32, 8, 37e-6, 0.81e12, 47e12},
    {"w4a8x2 64", MoeKernel::kW4A8, 1, 0, 64, 16, 52e-6, 0.52e12, 53e12},
    {"w4a8x2 prefill", MoeKernel::kW4A8Prefill, 1, 0, 64, 32, 59e-6, 0.64e12, 64e12},
};

}  // namespace

std::span<const MoeKernelConfig> w4a8_configs(int parts, bool emulated) {
  using Configs = std::span<const MoeKernelConfig>;
  if (parts == 2) return emulated ? Configs(kEmulatedX2Configs) : Configs(kW4A8x2Configs);
  return emulated ? Configs(kEmulatedConfigs) : Configs(kW4A8Configs);
}

bool slabs_take(const MoeShape& s) {
  return s.hidden == 2880 && s.intermediate == 2880 && s.top_k == 4 && s.experts < 255;
}

std::span<const MoeKernelConfig> sm90_configs(bool slabs, bool fp8, bool wgmma) {
  using Configs = std::span<const MoeKernelConfig>;
  if (slabs && !wgmma) return kMmaSlabConfigs;
  if (fp8) return slabs ? Configs(kFp8SlabConfigs) : Configs(kFp8GemmConfigs);
  return slabs ? Configs(kSlabConfigs) : Configs(kGemmConfigs);
}

MoeWork expected_work(const MoeShape& shape, const MoeKernelConfig& config) {
  MoeWork work;
  for_counts(shape, [&](int n, double p) {
    if (n == 0) return;
    const int tile = config.tile > 0 ? config.tile : n, whole = n / tile, rest = n % tile;
    work.experts += shape.experts * p;
    work.work_tiles += shape.experts * p * (whole + (rest > 0 ? 1 : 0));
    work.padded_rows +=
        shape.experts * p * (whole * round_up(tile, config.grain) + round_up(rest, config.grain));
  });
  work.seconds = config.start + std::max(work.work_tiles * shape.expert_bytes / config.bytes_per_second,
                                         flops_of(shape, work.padded_rows) / config.flops_per_second);
  return work;
}

std::vector<RankedConfig> rank_configs(const MoeShape& shape, std::span<const MoeKernelConfig> configs) {
  std::vector<RankedConfig> ranked;
  for (const MoeKernelConfig& config : configs) {
    if (takes(config, shape.tokens)) ranked.push_back({&config, expected_work(shape, config)});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const RankedConfig& a, const RankedConfig& b) {
    return a.work.seconds < b.work.seconds;
  });
  return ranked;
}

const MoeKernelConfig* choose_config(const MoeShape& shape, std::span<const MoeKernelConfig> configs,
                                     std::string_view measured) {
  const std::vector<RankedConfig> ranked = rank_configs(shape, configs);
  for (const RankedConfig& c : ranked) {
    if (c.config->name == measured) return c.config;
  }
  return ranked.empty() ? nullptr : ranked.front().config;
}

double floor_seconds(const MoeShape& shape, double bytes_per_second, double flops_per_second) {
  const MoeKernelConfig ideal{
      .name = "floor", .bytes_per_second = bytes_per_second, .flops_per_second = flops_per_second};
  return expected_work(shape, ideal).seconds;
}

}  // namespace moesaic
