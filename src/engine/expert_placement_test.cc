#include "engine/expert_placement.h"

#include <gtest/gtest.h>

#include "backend/idle_backend.h"
#include "base/memory.h"

namespace moesaic {
namespace {

constexpr int kLayers = 4;

ModelConfig four_layers() {
  return {.name = "test",
          .layers = kLayers,
          .kv_heads = 2,
          .head_dim = 32,
          .window = 128,
          .sliding = {true, false, true, false},
          .max_context = 1 << 20};
}

// Experts of 100 MB a layer, and 50 MB beside them; a token takes 1 KB a layer.
class PlacingDevice final : public IdleBackend, public HostPlacement {
 public:
  PlacingDevice(double free, const ExpertPlacement& asked) : free_(free), asked_(asked) {}
  BackendCaps caps() const override { return {.name = "toy:0"}; }
  double kv_token_bytes(const ModelConfig&) const override { return 1024; }
  std::vector<MemoryPart> memory(const ModelConfig& c, const ModelWeights&, const KvLayout& l) override {
    return {{kExpertsPart, 1e8 * (c.layers - host_layers_)},
            {kProjectionsPart, 5e7},
            {kCachePart, kv_bytes(l, c, *this), MemoryKind::kCache}};
  }
  double available_memory() const override { return free_; }
  HostPlacement* host_placement() override { return this; }
  const ExpertPlacement& asked() const override { return asked_; }
  void place(int host_layers) override { host_layers_ = host_layers, placed_ = true; }
  bool placed() const override { return placed_; }
  int host_layers() const override { return host_layers_; }
  std::vector<MemoryPart> host_memory(const ModelConfig&, const ModelWeights&) const override {
    return {{kExpertsPart, host_layer_bytes * host_layers_ * held}};
  }
  std::string host_name() const override { return "toy"; }
  double host_read_bandwidth() override { return 1; }

  bool hold_experts(double share) override { return holds && (held = share, true); }
  double held_experts() const override { return held; }

  double host_layer_bytes = 1e8, held = 1;
  bool holds = false;

 private:
  double free_;
  ExpertPlacement asked_;
  int host_layers_ = 0;
  bool placed_ = false;
};

int layers_placed(double free, const ExpertPlacement& asked, const KvDemand& demand = {.context = 32}) {
  PlacingDevice device(free, asked);
  EXPECT_EQ(place_experts(demand, four_layers(), {}, device).message(), "");
  EXPECT_TRUE(device.placed());
  return device.host_layers();
}

TEST(ExpertPlacement, AsAskedFor) {
  EXPECT_EQ(layers_placed(1e9, {}), 0);
  EXPECT_EQ(layers_placed(0, {}), 0);  // plan_memory() says what is lacking
  EXPECT_EQ(layers_placed(1e9, {.host_layers = 3}), 3);
  EXPECT_EQ(layers_placed(1e9, {.host_layers = 99}), kLayers);
  EXPECT_EQ(layers_placed(1e9, {.host_layers = ExpertPlacement::kAllLayers}), kLayers);
}

TEST(ExpertPlacement, AutoTakesAsManyAsDoNotFit) {
  const ExpertPlacement automatic{.automatic = true};
  EXPECT_EQ(layers_placed(4.6e8, automatic), 0);
  EXPECT_EQ(layers_placed(4.4e8, automatic), 1);
  EXPECT_EQ(layers_placed(1.6e8, automatic), 3);
  EXPECT_EQ(layers_placed(6e7, automatic), 4);
  EXPECT_EQ(layers_placed(1e7, automatic), 4);  // not even the rest fits
  // The cache counts: two layers keep every token.
  EXPECT_EQ(layers_placed(4.6e8, automatic, {.context = 100'000}), 2);
  // So do a drafter and its cache.
  EXPECT_EQ(layers_placed(4.6e8, automatic, {.context = 32, .draft = {.weights = 1.5e8}}), 2);
  EXPECT_EQ(layers_placed(4.6e8, automatic, {.context = 32, .draft = {.token_bytes = 1e6}}), 1);
}

TEST(ExpertPlacement, TooLittleHostMemoryIsOneLine) {
  PlacingDevice device(1e9, {.host_layers = 2});
  device.host_layer_bytes = 1e15;
  const Status status = place_experts({.context = 32}, four_layers(), {}, device);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(status.message().find("the experts of 2 of 4 layers take 2000000.00 GB of host memory"), 0u)
      << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

// Experts of 1 GB, and 100 MB beside them.
class HoldingHost final : public IdleBackend {
 public:
  explicit HoldingHost(double free) : free_(free) {}
  double kv_token_bytes(const ModelConfig&) const override { return 0; }
  std::vector<MemoryPart> memory(const ModelConfig&, const ModelWeights&, const KvLayout&) override {
    return {{kExpertsPart, 1e9 * held}, {kHeadPart, 1e8}};
  }
  double available_memory() const override { return free_; }
  bool hold_experts(double share) override { return held = share, true; }
  double held_experts() const override { return held; }
  double held = 1;

 private:
  double free_;
};

ModelConfig with_experts() {
  ModelConfig config = four_layers();
  config.experts = 32, config.experts_per_token = 4;
  return config;
}

const ModelWeights kOfAFile{.intact = [] { return Status(); }};

double held(double free, const ModelWeights& weights = kOfAFile) {
  HoldingHost host(free);
  for (int again = 0; again < 2; ++again)
    EXPECT_EQ(place_experts({.context = 32}, with_experts(), weights, host).message(), "");
  return host.held;
}

TEST(ExpertPlacement, MemoryHoldsWhatFits) {
  EXPECT_EQ(held(1.2e9), 1);
  EXPECT_NEAR(held(1e9), 0.8, 1e-9);  // nine tenths of it, less what is beside them
  EXPECT_NEAR(held(3e8), 0.17, 1e-9);
  EXPECT_EQ(held(2.4e8), 1);  // less than a token chooses: plan_memory() says what is lacking
  ModelWeights converted = kOfAFile;
  converted.convert_experts = [](int) { return ConvertedExperts(); };
  EXPECT_EQ(held(1e9, converted), 1);
  EXPECT_EQ(held(1e9, {}), 1);
}

TEST(ExpertPlacement, AHostHoldsAPartOfTheDevicesLayers) {
  PlacingDevice device(1e9, {.host_layers = 2});
  device.host_layer_bytes = 0.6 * available_host_memory(), device.holds = true;
  ASSERT_EQ(place_experts({.context = 32}, with_experts(), kOfAFile, device).message(), "");
  EXPECT_NEAR(device.held, 0.75, 0.1);
  EXPECT_NE(
      placement_words(with_experts(), kOfAFile, device).find("a step reads the others from the model's file"),
      std::string::npos);
}

TEST(ExpertPlacement, OtherBackendsHaveNone) {
  const auto cpu = create_backend("cpu", {.threads = 1, .experts = {.host_layers = 2}}).value();
  const ModelConfig config = with_experts();
  ModelWeights weights;
  weights.layers.resize(static_cast<size_t>(config.layers));
  EXPECT_TRUE(place_experts({.context = 32}, config, weights, *cpu).ok());
  EXPECT_EQ(placement_words(config, weights, *cpu), "");
}

TEST(ExpertPlacement, Words) {
  PlacingDevice device(2.6e8, {.automatic = true});
  ASSERT_TRUE(place_experts({.context = 32}, four_layers(), {}, device).ok());
  EXPECT_EQ(placement_words(four_layers(), {}, device),
            "experts of layers 2 to 3 (2 of 4) in host memory, 0.20 GB: the GPU has no room for them");
  device.place(0);
  EXPECT_EQ(placement_words(four_layers(), {}, device), "");
}

TEST(ExpertPlacement, Names) {
  EXPECT_FALSE(expert_placement("gpu", 8)->automatic);
  EXPECT_TRUE(expert_placement("auto", 0)->automatic);
  EXPECT_TRUE(expert_placement("", 8)->automatic);
  EXPECT_FALSE(expert_placement("", 0)->automatic);
  EXPECT_EQ(expert_placement("host", 0)->host_layers, ExpertPlacement::kAllLayers);
  EXPECT_EQ(expert_placement("host:12", 0)->host_layers, 12);
  EXPECT_EQ(expert_placement("host:12", 0)->stream_rows, ExpertPlacement::kMeasured);
  EXPECT_EQ(expert_placement("host:12,stream:64", 0)->host_layers, 12);
  EXPECT_EQ(expert_placement("host:12,stream:64", 0)->stream_rows, 64);
  EXPECT_EQ(expert_placement("auto,stream:never", 0)->stream_rows, ExpertPlacement::kNever);
  EXPECT_TRUE(expert_placement(",stream:9", 8)->automatic);
  EXPECT_EQ(expert_placement("host:2,hot:8", 0)->hot, 8);
  EXPECT_EQ(expert_placement("host:2,stream:never,hot:8", 0)->stream_rows, ExpertPlacement::kNever);
  EXPECT_EQ(expert_placement("host:2,hot:8,stream:20", 0)->stream_rows, 20);
  for (const char* wrong : {"host:", "host:-1", "host:2x", "hosts", "host:99999999999", "cpu", "stream:9",
                            "host,stream:", "host,stream:0", "host,stream:-1", "gpu,stream:9x", "host,hot:0",
                            "host,hot:never", "host,hot", "host,", "host,cold:1"})
    EXPECT_NE(expert_placement(wrong, 0).status().message().find(wrong), std::string::npos) << wrong;
}

TEST(ExpertPlacement, WhatIsToFitWhereNobodySaid) {
  const KvDemand least = least_demand({.sequences = 0, .context = 0}, four_layers());
  EXPECT_EQ(least.sequences, 1);
  EXPECT_EQ(least.context, 8192);
  EXPECT_EQ(least.logit_rows, 1);
  EXPECT_EQ(least_demand({.sequences = 3, .context = 700}, four_layers()).context, 700);
  EXPECT_EQ(least_demand({.context = 0, .kv_tokens = 640}, four_layers()).context, 640);
}

}  // namespace
}  // namespace moesaic
