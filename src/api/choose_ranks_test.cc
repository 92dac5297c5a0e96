// The number of ranks on machines that are not here: GPUs of any kind, and NUMA nodes.
#include "api/choose_ranks.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/two_nodes.h"

namespace moesaic {
namespace {

// H100 that all reach each other.
std::vector<RankGpu> h100s(int count, double memory = 85e9) {
  std::vector<RankGpu> gpus;
  for (int i = 0; i < count; ++i) {
    RankGpu& gpu =
        gpus.emplace_back(RankGpu{.index = i, .kind = "H100", .memory = memory, .bytes_per_second = 3.35e12});
    for (int peer = 0; peer < count; ++peer)
      if (peer != i) gpu.reaches.push_back(peer);
  }
  return gpus;
}

const Checkpoint& large() {
  static const Checkpoint model = open_checkpoint("dummy:gpt-oss-120b,dense=bf16").value();
  return model;
}

class ChooseGpus : public testing::Test {
 protected:
  RankChoice choose(const std::vector<RankGpu>& gpus, const std::string& one_only = {}) const {
    return choose_gpus({large().config, large().weights, {}, 0, one_only}, gpus);
  }
  static Checkpoint open(const char* model) { return open_checkpoint(model).value(); }
};

void expect(const RankChoice& choice, const std::vector<int>& gpus, const std::string& reason) {
  EXPECT_EQ(choice.gpus, gpus) << choice.reason;
  EXPECT_EQ(choice.ranks, std::ssize(gpus));
  EXPECT_NE(choice.reason.find(reason), std::string::npos) << choice.reason;
  EXPECT_EQ(choice.reason.find('\n'), std::string::npos);
}

TEST_F(ChooseGpus, MoreWhereTheyAnswerSooner) {
  expect(choose(h100s(1)), {0}, "one GPU (cuda:0): there is one");
  expect(choose(h100s(2)), {0, 1}, "2 GPUs (cuda:0,1): a token takes 1.");
  const RankChoice eight = choose(h100s(8));
  EXPECT_GE(eight.ranks, 4) << eight.reason;
  EXPECT_LE(choose(h100s(12)).ranks, kMostRanks);
}

// Its exchanges would take longer than its bytes.
TEST_F(ChooseGpus, ASmallModelStaysOnOne) {
  const Checkpoint tiny = open(MOESAIC_SOURCE_DIR "/models/tiny");
  const RankChoice choice = choose_gpus({tiny.config, tiny.weights, {}, 0, ""}, h100s(4));
  expect(choice, {0}, "one GPU (cuda:0): a token takes 0.");
  EXPECT_NE(choice.reason.find("on two 0."), std::string::npos) << choice.reason;
}

// 60.8 GB of experts and 5.2 of the rest; nobody has to know how fast the memory is.
TEST_F(ChooseGpus, AsManyAsTheModelNeeds) {
  std::vector<RankGpu> gpus = h100s(4, 45e9);
  for (RankGpu& gpu : gpus) gpu.bytes_per_second = 0;
  expect(choose(gpus), {0, 1}, "2 GPUs (cuda:0,1): the model needs 6");
  gpus = h100s(2, 20e9);
  expect(choose(gpus), {0, 1}, "GB on each, they have 20.0 GB");
  gpus = h100s(4);
  for (RankGpu& gpu : gpus) gpu.bytes_per_second = 0;
  expect(choose(gpus), {0}, "the driver does not tell its memory's bandwidth");
}

TEST_F(ChooseGpus, TheCacheAndTheDenseFormatCount) {
  std::vector<RankGpu> gpus = h100s(2, 72e9);
  for (RankGpu& gpu : gpus) gpu.bytes_per_second = 0;
  EXPECT_EQ(choose_gpus({large().config, large().weights, {}, 0, ""}, gpus).ranks, 1);
  EXPECT_EQ(choose_gpus({large().config, large().weights, {}, 8e9, ""}, gpus).ranks, 2);
  EXPECT_EQ(choose_gpus({large().config, large().weights, Format::kMxfp4, 8e9 - 3e9, ""}, gpus).ranks, 1);
}

TEST_F(ChooseGpus, WhatCannotWorkIsOne) {
  std::vector<RankGpu> gpus = h100s(2);
  gpus[0].reaches.clear();  // one way is not enough
  expect(choose(gpus), {0}, "cuda:0 and cuda:1 do not reach each other's memory");
  gpus = h100s(2);
  gpus[1].kind = "H200";
  expect(choose(gpus), {0}, "cuda:1 is another kind than cuda:0");
  gpus[0].one_only = "its kernels (W4A8) have one rank";
  expect(choose(gpus), {0}, "one GPU (cuda:0): its kernels");
  expect(choose(h100s(2), "this has one rank"), {0}, "one GPU (cuda:0): this has one rank");
  Checkpoint adapted = open(MOESAIC_SOURCE_DIR "/models/tiny");
  adapted.weights.adapters.resize(1);
  expect(choose_gpus({adapted.config, adapted.weights, {}, 0, ""}, h100s(2)), {0},
         "one GPU (cuda:0): LoRA adapters are not cut");
}

// The second GPU is on another board; the third and fourth are not.
TEST_F(ChooseGpus, OthersArePassedOver) {
  std::vector<RankGpu> gpus = h100s(3);
  gpus[1].kind = "T4";
  expect(choose(gpus), {0, 2}, "2 GPUs (cuda:0,2)");
  gpus = h100s(4);
  for (const int i : {0, 2, 3}) std::erase(gpus[i].reaches, 1);
  const RankChoice choice = choose(gpus);
  EXPECT_EQ(choice.gpus[1], 2);
}

TEST(ChooseNodes, OneForEachNode) {
  const Checkpoint tiny = open_checkpoint(MOESAIC_SOURCE_DIR "/models/tiny").value();
  const RankedModel model{tiny.config, tiny.weights, {}, 0, ""};
  ThreadPlan plan{.threads = 24, .nodes = {{.id = 0, .threads = 16}}};
  EXPECT_EQ(choose_nodes(model, plan).reason, "one rank: there is one NUMA node with threads");
  plan.nodes.push_back({.id = 3, .threads = 8});
  const RankChoice two = choose_nodes(model, plan);
  EXPECT_EQ(two.ranks, 2);
  EXPECT_EQ(two.reason, "2 ranks, one for each NUMA node; threads: 16 on node 0, 8 on node 3");
  plan.nodes.push_back({.id = 4, .threads = 1});
  EXPECT_EQ(choose_nodes(model, plan).reason,
            "one rank: 3 NUMA nodes: the model has 2 KV heads, and each rank takes at least one");
  plan.nodes.resize(kMostRanks + 1, {.id = 5, .threads = 1});
  EXPECT_EQ(choose_nodes(model, plan).reason, "one rank: there are 9 NUMA nodes, and at most 8 ranks");
}

class SettleRanks : public testing::Test {
 protected:
  DeviceChoice settled(const std::string& device, const BackendOptions& options,
                       const std::string& one_only = {}) {
    DeviceChoice choice{device, options};
    const Status status = settle_ranks(tiny_, 0, one_only, choice);
    if (!status.ok()) choice.ranks = status.message();
    return choice;
  }
  const Checkpoint tiny_ = open_checkpoint(MOESAIC_SOURCE_DIR "/models/tiny").value();
};

TEST_F(SettleRanks, ANumberStays) {
  const DeviceChoice choice = settled("cpu", {.tp = 2});
  EXPECT_EQ(choice.options.tp, 2);
  EXPECT_EQ(choice.ranks, "");
}

TEST_F(SettleRanks, OnAHost) {
  const TwoNodes two;
  const DeviceChoice automatic = settled("cpu", {.tp = kAutoRanks, .system_root = two.root()});
  EXPECT_EQ(automatic.options.tp, 1);
  EXPECT_NE(automatic.ranks.find("--tp numa"), std::string::npos);
  EXPECT_EQ(settled("reference", {.tp = kRankPerNode}).options.tp, 1);
  EXPECT_EQ(settled("cpu", {.tp = kRankPerNode, .system_root = two.root()}, "why not").ranks,
            "one rank: why not");
  EXPECT_NE(settled("cpu", {.tp = kRankPerNode, .cpu_pin = false}).ranks.find("--cpu-pin off"),
            std::string::npos);
  if (!TwoNodes::usable()) GTEST_SKIP() << "CPUs 0 and 1 are not both usable";
  const DeviceChoice numa = settled("cpu", {.tp = kRankPerNode, .system_root = two.root()});
  EXPECT_EQ(numa.options.tp, 2);
  EXPECT_TRUE(numa.options.rank_per_node);
  EXPECT_EQ(numa.ranks, "2 ranks, one for each NUMA node; threads: 1 on node 0, 1 on node 1");
}

DeviceChoice settled_on_gpus(const std::string& device, const BackendOptions& options, int gpus) {
  DeviceChoice choice{device, options};
  const Status status = settle_ranks(large(), 0, "", choice, [&] { return h100s(gpus); });
  if (!status.ok()) choice.ranks = status.message();
  return choice;
}

// The names that create_backend() then takes.
TEST_F(SettleRanks, OnGpus) {
  const BackendOptions wanted{.tp = kAutoRanks};
  const DeviceChoice automatic = settled_on_gpus("auto", wanted, 2);
  EXPECT_EQ(automatic.options.tp, 2);
  EXPECT_EQ(automatic.options.devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(automatic.device, "auto");  // plan_engine() may still take the CPU
  EXPECT_NE(automatic.ranks.find("2 GPUs (cuda:0,1): a token takes"), std::string::npos);
  EXPECT_EQ(settled_on_gpus("cuda", wanted, 2).device, "cuda:0,1");
  EXPECT_EQ(settled_on_gpus("cuda:1", wanted, 3).device, "cuda:1,2");
  EXPECT_EQ(settled_on_gpus("cuda:2,0", wanted, 3).device, "cuda:2,0");
  EXPECT_EQ(settled_on_gpus("cuda:2,0", wanted, 3).options.devices, (std::vector<int>{2, 0}));
  EXPECT_EQ(settled_on_gpus("cuda:2", wanted, 3).options.tp, 1);
  for (const char* absent : {"cuda:7", "cuda:0,7"}) {  // create_backend() says what is wrong
    EXPECT_EQ(settled_on_gpus(absent, wanted, 3).device, absent);
    EXPECT_EQ(settled_on_gpus(absent, wanted, 3).ranks, "");
  }
  EXPECT_NE(settled_on_gpus("cuda:x", wanted, 3).ranks.find("device 'cuda:x'"), std::string::npos);
  EXPECT_NE(settled_on_gpus("cuda:0,0", wanted, 3).ranks.find("names a GPU twice"), std::string::npos);
}

TEST_F(SettleRanks, WhatHasOneRankOnGpus) {
  for (const BackendOptions& options : {BackendOptions{.tp = kAutoRanks, .moe_path = MoePath::kW4A8},
                                        BackendOptions{.tp = kAutoRanks, .experts = {.host_layers = 3}},
                                        BackendOptions{.tp = kAutoRanks, .gpu_memory = 8 * kGib}}) {
    const DeviceChoice choice = settled_on_gpus("cuda", options, 2);
    EXPECT_EQ(choice.device, "cuda:0");
    EXPECT_EQ(choice.options.tp, 1);
    EXPECT_NE(choice.ranks.find("one GPU (cuda:0): "), std::string::npos) << choice.ranks;
    EXPECT_NE(choice.ranks.find("one rank"), std::string::npos) << choice.ranks;
  }
  EXPECT_NE(settled_on_gpus("auto", {.tp = kRankPerNode}, 2).ranks.find("use --device cpu"),
            std::string::npos);
}

}  // namespace
}  // namespace moesaic
