#include "tuning/moe_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace moesaic {
namespace {

constexpr double kExpertBytes = 3.0 * 2880 * 2880 * 4.25 / 8;
MoeShape shape(int tokens, int experts) {
  return {.tokens = tokens,
          .top_k = 4,
          .experts = experts,
          .hidden = 2880,
          .intermediate = 2880,
          .expert_bytes = kExpertBytes};
}
MoeKernelConfig config(int tile, int grain = 1) {
  return {.name = "tile", .tile = tile, .grain = grain, .bytes_per_second = 1, .flops_per_second = 1e30};
}

TEST(ExpectedWork, OneTokenReachesTopKExperts) {
  const MoeWork work = expected_work(shape(1, 128), config(8, 8));
  EXPECT_NEAR(work.experts, 4, 1e-6);
  EXPECT_NEAR(work.work_tiles, 4, 1e-6);
  EXPECT_NEAR(work.padded_rows, 32, 1e-6);
  EXPECT_NEAR(work.seconds, 4 * kExpertBytes, 1);
}

// Draws routings and counts.
TEST(ExpectedWork, IsTheMeanOfRandomRouting) {
  std::mt19937 rng(3);
  for (const auto& [tokens, experts, tile, grain] :
       {std::array{8, 32, 8, 8}, {64, 32, 16, 16}, {300, 128, 16, 8}, {1000, 32, 64, 16}}) {
    constexpr int kTrials = 400;
    double work_tiles = 0, rows = 0, reached = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<int> counts(experts);
      for (int t = 0; t < tokens; ++t) {
        std::set<int> chosen;
        while (chosen.size() < 4) chosen.insert(static_cast<int>(rng() % experts));
        for (const int e : chosen) ++counts[e];
      }
      for (const int n : counts) {
        reached += n > 0 ? 1 : 0;
        for (int left = n; left > 0; left -= tile) {
          const int steps = (std::min(left, tile) + grain - 1) / grain;
          work_tiles += 1, rows += steps * grain;
        }
      }
    }
    const MoeWork work = expected_work(shape(tokens, experts), config(tile, grain));
    EXPECT_NEAR(work.experts, reached / kTrials, 0.02 * work.experts) << tokens;
    EXPECT_NEAR(work.work_tiles, work_tiles / kTrials, 0.02 * work.work_tiles) << tokens;
    EXPECT_NEAR(work.padded_rows, rows / kTrials, 0.02 * work.padded_rows) << tokens;
  }
}

TEST(RankConfigs, PutsTheQuickestThatTakesTheStepFirst) {
  const MoeKernelConfig configs[] = {{.name = "decode",
                                      .most_tokens = 8,
                                      .start = 2e-6,
                                      .bytes_per_second = 3.6e12,
                                      .flops_per_second = 1e14},
                                     {.name = "small",
                                      .tile = 16,
                                      .grain = 16,
                                      .start = 4e-6,
                                      .bytes_per_second = 2.5e12,
                                      .flops_per_second = 4e14},
                                     {.name = "large",
                                      .tile = 128,
                                      .grain = 16,
                                      .start = 8e-6,
                                      .bytes_per_second = 2e12,
                                      .flops_per_second = 6e14}};
  EXPECT_EQ(rank_configs(shape(1, 32), configs).front().config->name, "decode");
  EXPECT_EQ(rank_configs(shape(16, 32), configs).front().config->name, "small");
  EXPECT_EQ(rank_configs(shape(16, 32), configs).size(), 2u);
  EXPECT_EQ(rank_configs(shape(4096, 32), configs).front().config->name, "large");
}

TEST(Floor, IsBytesThenOperations) {
  EXPECT_NEAR(floor_seconds(shape(1, 128), 4.8e12, 989e12), 4 * kExpertBytes / 4.8e12, 1e-9);
  EXPECT_NEAR(floor_seconds(shape(8192, 32), 4.8e12, 989e12), 6.0 * 8192 * 4 * 2880 * 2880 / 989e12, 1e-7);
}

TEST(RankConfigs, OfW4A8) {
  const auto name = [](int tokens, int parts) {
    return rank_configs(shape(tokens, 128), w4a8_configs(parts)).front().config->name;
  };
  for (const int tokens : {1, 2, 4, 8}) {
    EXPECT_EQ(name(tokens, 1), "w4a8 8");
    EXPECT_EQ(name(tokens, 2), "w4a8x2 8");
  }
  EXPECT_EQ(name(8192, 1), "w4a8 prefill");
  EXPECT_EQ(name(8192, 2), "w4a8x2 prefill");
}

// Microseconds of docs/lab, measured on an H200, in the order of w4a8_configs(1).
TEST(W4A8Configs, EmulatedTimesAreTheMeasuredOnes) {
  struct Measured {
    int tokens;
    std::array<double, 6> us;
  };
  constexpr Measured kMeasured[] = {
      {1, {49.6, 54.2, 72.7, 102.4, 153.8, 158.3}},
      {2, {66.6, 81.4, 120.1, 166, 254.3, 250.9}},
      {4, {105.2, 131.8, 203.2, 290.7, 450, 439.1}},
      {8, {174.9, 225.1, 353, 503.6, 786.3, 771.8}},
      {16, {312.9, 399.1, 620, 883.3, 1367.1, 1326.7}},
      {64, {612, 800.4, 1283.4, 1832.3, 2856.4, 2762.3}},
      {256, {975.3, 938.5, 1504.6, 2145.2, 3336.5, 3243.3}},
      {2048, {5688.6, 4152.9, 3998.1, 4824.4, 4803.4, 4706.9}},
  };
  for (const Measured& m : kMeasured) {
    for (size_t i = 0; i < m.us.size(); ++i) {
      const MoeKernelConfig& config = w4a8_configs(1, true)[i];
      EXPECT_EQ(config.name, w4a8_configs(1)[i].name);
      EXPECT_NEAR(expected_work(shape(m.tokens, 128), config).seconds * 1e6, m.us[i], 0.08 * m.us[i])
          << config.name << " " << m.tokens;
    }
    const size_t best = std::min_element(m.us.begin(), m.us.end()) - m.us.begin();
    EXPECT_EQ(rank_configs(shape(m.tokens, 128), w4a8_configs(1, true)).front().config->name,
              w4a8_configs(1)[best].name)
        << m.tokens;
  }
}

// Steps of up to so many tokens, of gpt-oss-20b's and -120b's experts.
TEST(ChooseConfig, ByTokens) {
  struct Range {
    int last;
    std::string_view name;
  };
  const auto expect = [](int experts, std::span<const MoeKernelConfig> configs, std::vector<Range> ranges) {
    for (int tokens = 1; tokens <= ranges.back().last; ++tokens) {
      const auto range =
          std::find_if(ranges.begin(), ranges.end(), [&](Range r) { return tokens <= r.last; });
      ASSERT_EQ(choose_config(shape(tokens, experts), configs)->name, range->name)
          << tokens << " " << experts;
    }
  };
  expect(32, sm90_configs(true),
         {{8, "decode"}, {103, "split-k 16"}, {135, "wgmma 32"}, {203, "wgmma 64"}, {4096, "wgmma 128"}});
  expect(128, sm90_configs(true),
         {{8, "decode"}, {390, "split-k 16"}, {533, "wgmma 32"}, {4096, "wgmma 128"}});
  expect(32, sm90_configs(true, false, false), {{8, "decode"}, {116, "split-k 16"}, {4096, "mma 64"}});
  expect(128, sm90_configs(true, false, false), {{8, "decode"}, {440, "split-k 16"}, {4096, "mma 64"}});
  expect(32, sm90_configs(true, true),
         {{8, "decode"},
          {103, "split-k 16"},
          {192, "wgmma fp8 32"},
          {361, "wgmma fp8 64"},
          {516, "wgmma fp8 128"},
          {4096, "wgmma fp8 192"}});
  expect(32, sm90_configs(false),
         {{91, "gemm 8"},
          {110, "gemm 16"},
          {176, "gemm 8"},
          {543, "gemm 64"},
          {1029, "gemm 128"},
          {1496, "gemm 64"},
          {4096, "gemm 128"}});
  expect(32, sm90_configs(false, true),
         {{74, "gemm 8"},
          {543, "gemm fp8 64"},
          {1029, "gemm fp8 128"},
          {1496, "gemm fp8 64"},
          {4096, "gemm fp8 128"}});
  expect(128, sm90_configs(false),
         {{390, "gemm 8"}, {422, "gemm 16"}, {707, "gemm 8"}, {2180, "gemm 64"}, {4096, "gemm 128"}});
  expect(32, w4a8_configs(1),
         {{8, "w4a8 8"},
          {27, "w4a8 16"},
          {213, "w4a8 32"},
          {242, "w4a8 64"},
          {489, "w4a8 128"},
          {517, "w4a8 prefill"},
          {741, "w4a8 128"},
          {4096, "w4a8 prefill"}});
  expect(128, w4a8_configs(1),
         {{17, "w4a8 8"},
          {85, "w4a8 16"},
          {842, "w4a8 32"},
          {914, "w4a8 64"},
          {1951, "w4a8 128"},
          {2069, "w4a8 prefill"},
          {2961, "w4a8 128"},
          {4096, "w4a8 prefill"}});
  expect(32, w4a8_configs(1, true),
         {{60, "w4a8 8"}, {145, "w4a8 16"}, {266, "w4a8 32"}, {359, "w4a8 16"}, {807, "w4a8 32"}});
  expect(128, w4a8_configs(1, true),
         {{244, "w4a8 8"}, {583, "w4a8 16"}, {1070, "w4a8 32"}, {1429, "w4a8 16"}, {3180, "w4a8 32"}});
}

// The kernel that was measured as fastest goes first, where it takes the step.
TEST(ChooseConfig, AsMeasured) {
  const auto name = [](int tokens, std::string_view measured) {
    return choose_config(shape(tokens, 32), sm90_configs(true), measured)->name;
  };
  EXPECT_EQ(name(16, "wgmma 64"), "wgmma 64");
  EXPECT_EQ(name(16, "decode"), "split-k 16");
  EXPECT_EQ(name(16, "no such"), "split-k 16");
  EXPECT_EQ(choose_config(shape(16, 32), sm90_configs(true).first(1)), nullptr);
}

// A tile of 128 wastes what one of 8 does not.
TEST(ExpectedWork, OfUseInATile) {
  const auto use = [](int tokens, int tile) {
    return tokens * 4 / expected_work(shape(tokens, 128), config(tile, tile)).padded_rows;
  };
  EXPECT_NEAR(use(1, 8), 1.0 / 8, 1e-6);
  EXPECT_NEAR(use(1, 128), 1.0 / 128, 1e-6);
  EXPECT_NEAR(use(8, 8), 0.139, 0.01);
  EXPECT_NEAR(use(8, 128), 0.0087, 0.001);
}

}  // namespace
}  // namespace moesaic
