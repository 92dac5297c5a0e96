#include "tuning/moe_probe.h"

#include <gtest/gtest.h>

#include <map>

namespace moesaic {
namespace {

MoeShape shape_20b() {
  return {.top_k = 4, .experts = 32, .hidden = 2880, .intermediate = 2880, .expert_bytes = 13.2e6};
}
std::span<const MoeKernelConfig> slabs() { return sm90_configs(true); }

// A device whose kernels take what the figures say, but for those of `factors`; and a clock that goes on by
// `each` with every measurement.
struct Toy {
  std::map<std::string, double, std::less<>> factors = {};
  double each = 0, now = 0;
  std::map<int, std::vector<std::string>> measured = {};  // by tokens, in order

  Result<std::vector<TunedStep>> probe(int most, std::vector<TunedStep> known = {}) {
    return probe_moe(shape_20b(), slabs(), std::move(known),
                     {.most_tokens = most, .seconds = 1, .clock = [this] { return now; }},
                     [this](int tokens, const MoeKernelConfig& config) -> Result<double> {
                       EXPECT_TRUE(takes(config, tokens)) << config.name << " " << tokens;
                       now += each;
                       measured[tokens].emplace_back(config.name);
                       MoeShape shape = shape_20b();
                       shape.tokens = tokens;
                       const auto factor = factors.find(config.name);
                       return expected_work(shape, config).seconds *
                              (factor == factors.end() ? 1 : factor->second);
                     });
  }
};

std::string_view by_figures(int tokens) {
  MoeShape shape = shape_20b();
  shape.tokens = tokens;
  return choose_config(shape, slabs())->name;
}

TEST(MoeProbe, WhereThereIsNoChoiceNothingIsMeasured) {
  EXPECT_EQ(probed_tokens(slabs(), 2048), (std::vector<int>{16, 32, 64, 128, 256, 512, 1024, 2048}));
  EXPECT_EQ(probed_tokens(slabs(), 100), (std::vector<int>{16, 32, 64}));
  EXPECT_EQ(probed_tokens(slabs(), 1 << 16).back(), kMostProbed);
  EXPECT_TRUE(probed_tokens(slabs(), 8).empty());  // decode alone takes so few
  EXPECT_TRUE(covers({}, slabs(), 8));
  EXPECT_FALSE(covers({}, slabs(), 16));
  EXPECT_EQ(probed_tokens(sm90_configs(false), 4), (std::vector<int>{1, 2, 4}));
}

TEST(MoeProbe, OnTheDeviceOfTheFiguresTheirChoiceStays) {
  Toy h200;
  const auto steps = h200.probe(2048).value();
  ASSERT_EQ(steps.size(), 8u);
  for (const TunedStep& step : steps) {
    EXPECT_EQ(step.config, by_figures(step.tokens));
    EXPECT_EQ(h200.measured[step.tokens].front(), step.config);
    EXPECT_GT(step.seconds, 0);
  }
  EXPECT_TRUE(covers(steps, slabs(), 1 << 16));
}

TEST(MoeProbe, AnotherDeviceHasAnotherChoice) {
  Toy device{.factors = {{"wgmma 128", 2.0}}};
  const auto steps = device.probe(2048).value();
  EXPECT_NE(by_figures(2048), steps.back().config);
  Toy noisy{.factors = {{"wgmma 128", 1.02}, {"wgmma 64", 0.99}}};
  const auto same = noisy.probe(2048).value();
  for (const TunedStep& step : same)
    EXPECT_EQ(step.config, by_figures(step.tokens)) << "a difference of measurements decided";
}

TEST(MoeProbe, WithoutTimeStepsFarApartAreMeasured) {
  Toy slow{.each = 0.12};
  const auto steps = slow.probe(2048).value();
  EXPECT_LT(slow.now, 1.3);
  ASSERT_GE(steps.size(), 2u);
  EXPECT_LT(steps.size(), 8u);
  EXPECT_EQ(steps.back().tokens, 2048);
  EXPECT_EQ(steps[steps.size() - 2].tokens, 512);
  EXPECT_TRUE(covers(steps, slabs(), 2048));
  Toy late{.each = 2};
  EXPECT_EQ(late.probe(2048).value().size(), 1u);
}

TEST(MoeProbe, WhatIsKnownIsNotMeasuredAgain) {
  Toy device;
  const auto steps = device.probe(2048, {{16, "wgmma 32", 1e-3}, {512, "wgmma 64", 1e-3}}).value();
  EXPECT_EQ(device.measured.begin()->first, 1024);
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[1].config, "wgmma 64");
  EXPECT_FALSE(covers({{512, "wgmma 64", 1e-3}}, slabs(), 2048));
  EXPECT_TRUE(covers({{512, "wgmma 64", 1e-3}}, slabs(), 512));
}

TEST(MoeProbe, AnErrorEndsIt) {
  const auto failed = probe_moe(
      shape_20b(), slabs(), {}, {.most_tokens = 64},
      [](int, const MoeKernelConfig&) -> Result<double> { return Status(StatusCode::kInternal, "a fault"); });
  EXPECT_EQ(failed.status().message(), "a fault");
}

}  // namespace
}  // namespace moesaic
