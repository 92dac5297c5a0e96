// A whole model on the cuda backend, some of whose layers leave their experts to the host: its own code with
// the kernels in the simulator, and the cpu backend's experts. Against the same model without the host's.
#include <gtest/gtest.h>

#include "backend/cuda/testing/host_simulator/small_model.h"
#include "base/temporary_folder.h"

namespace moesaic::cuda {
namespace {

// Prompts, one sequence that decodes, and batches, in one model after the other.
TEST(HostExpertsOnCuda, AgreeWithTheDevicesOwn) {
  const std::vector<std::vector<int>> steps = {{8}, {1}, {8, 7, 5}, {1, 1, 1, 1}, {1}, {3, 8, 1, 8}};
  Model device(0);
  std::vector<std::vector<float>> want;
  for (const auto& rows : steps) want.push_back(device.step(rows));
  ASSERT_EQ(device.status().message(), "");
  for (int layers = 1; layers <= kLayers; ++layers) {
    Model host(layers);
    for (size_t i = 0; i < steps.size(); ++i) {
      const std::vector<float> got = host.step(steps[i]);
      ASSERT_EQ(host.status().message(), "");
      EXPECT_LT(relative_error(got, want[i]), kTolerance) << layers << " layers, step " << i;
      EXPECT_GT(relative_error(got, want[i]), 0) << layers << " layers, step " << i;
    }
  }
}

// Where experts come to the device the bits are those of a device that has them. A step of few rows is the
// CPU's, and what comes after it differs by its rounding.
TEST(HostExpertsOnCuda, StreamedOnesGiveTheDevicesBits) {
  const std::vector<std::vector<int>> steps = {{8, 1}, {8, 7, 5}, {3, 8, 1, 8}, {8, 8, 8, 8}};
  Model device(0);
  std::vector<std::vector<float>> want;
  for (const auto& rows : steps) want.push_back(device.step(rows));
  want.push_back(device.step({2, 1}));
  for (int layers = 1; layers <= kLayers; ++layers) {
    Model host(layers, 9);
    for (size_t i = 0; i < steps.size(); ++i)
      EXPECT_EQ(host.step(steps[i]), want[i]) << layers << " layers, step " << i;
    const std::vector<float> got = host.step({2, 1});
    ASSERT_EQ(host.status().message(), "");
    EXPECT_LT(relative_error(got, want.back()), kTolerance) << layers;
    EXPECT_GT(relative_error(got, want.back()), 0) << layers;
  }
}

// Steps of both kinds in turn: what one left behind is not in the other's way.
TEST(HostExpertsOnCuda, StreamedStepsAndOthersTakeTurns) {
  const std::vector<std::vector<int>> steps = {{8, 8}, {1}, {8, 8}, {1, 1}, {1}, {4, 8}, {8}, {8, 8, 8}};
  Model device(0), host(2, 12);
  for (const auto& rows : steps) {
    const std::vector<float> want = device.step(rows), got = host.step(rows);
    ASSERT_EQ(host.status().message(), "");
    EXPECT_LT(relative_error(got, want), kTolerance);
  }
}

// The device computes its part while the host computes the other. With all experts there only the order of a
// row's sum differs from the device's own.
TEST(HostExpertsOnCuda, HotOnesAreTheDevices) {
  const std::vector<std::vector<int>> steps = {{8, 4}, {1}, {1, 1, 1}, {8, 7, 5}, {1}, {2, 1}};
  Model device(0);
  std::vector<std::vector<float>> want;
  for (const auto& rows : steps) want.push_back(device.step(rows));
  for (const int stream_rows : {ExpertPlacement::kNever, 15}) {
    for (const int hot : {1, 3, 6, 99}) {
      Model host(2, stream_rows, hot);
      for (size_t i = 0; i < steps.size(); ++i) {
        const std::vector<float> got = host.step(steps[i]);
        ASSERT_EQ(host.status().message(), "");
        EXPECT_LT(relative_error(got, want[i]), hot < 6 ? kTolerance : 2e-3) << hot << " hot, step " << i;
      }
    }
  }
}

// Long enough for experts to be exchanged; the tokens of a step are few, so some experts are seldom chosen.
TEST(HostExpertsOnCuda, HotOnesAreExchanged) {
  Model device(0), host(3, ExpertPlacement::kNever, 2);
  for (int i = 0; i < 60; ++i) {
    const std::vector<float> want = device.step({1, 1}), got = host.step({1, 1});
    ASSERT_EQ(host.status().message(), "");
    EXPECT_LT(relative_error(got, want), 2 * kTolerance) << i;  // the caches differ, too
  }
}

// Counts are kept when a model goes, and the next one begins with them.
TEST(HostExpertsOnCuda, HotOnesAreThoseOfTheLastRun) {
  const TemporaryFolder folder;
  constexpr const char *kFresh = "no counts are kept", *kKept = "those of the last run";
  Model first(2, ExpertPlacement::kNever, 2, folder.path());
  EXPECT_NE(first.backend().caps().measured.find(kFresh), std::string::npos);
  for (int i = 0; i < 4; ++i) first.step({1, 1});
  first.load(2);
  EXPECT_NE(first.backend().caps().measured.find(kKept), std::string::npos);
  Model device(0), second(3, ExpertPlacement::kNever, 2, folder.path());
  EXPECT_NE(second.backend().caps().measured.find(kKept), std::string::npos);
  EXPECT_LT(relative_error(second.step({8, 4}), device.step({8, 4})), kTolerance);
  EXPECT_EQ(device.backend().caps().measured, "");
}

// The host holds a part of its experts and reads the others when they are wanted: the bits are the same, and
// no expert comes to the device, whatever was asked for.
TEST(HostExpertsOnCuda, ThoseOfAFileGiveTheSameBits) {
  const std::vector<std::vector<int>> steps = {{8}, {1}, {8, 7, 5}, {1, 1}, {1}, {3, 8, 1, 8}};
  Model all(2);
  Model part(2, 9, 3);
  ASSERT_TRUE(part.backend().hold_experts(0.5));
  part.load(2);
  EXPECT_NE(part.backend().caps().measured.find("from the model's file"), std::string::npos);
  for (const auto& rows : steps) {
    EXPECT_EQ(part.step(rows), all.step(rows));
    ASSERT_EQ(part.status().message(), "");
  }
}

// A load measures the break-even and reports it, and it decides.
TEST(HostExpertsOnCuda, TheBreakEvenIsMeasured) {
  Model host(1, ExpertPlacement::kMeasured);
  EXPECT_NE(host.backend().caps().measured.find("tokens or more bring experts to the GPU"),
            std::string::npos);
  host.step({8, 8});
  EXPECT_EQ(host.status().message(), "");
  EXPECT_EQ(Model(1).backend().caps().measured, "");
  EXPECT_EQ(Model(0, ExpertPlacement::kMeasured).backend().caps().measured, "");
}

// A row's bits must not depend on what is beside it.
TEST(HostExpertsOnCuda, NothingIsStreamedForBatchInvariance) {
  auto made = create_cuda_backend(
      {.max_rows = kMaxRows, .batch_invariant = true, .experts = {.host_layers = 1, .stream_rows = 9}});
  EXPECT_NE(made.status().message().find("--batch-invariant"), std::string::npos);
  made = create_cuda_backend(
      {.max_rows = kMaxRows, .batch_invariant = true, .experts = {.host_layers = 1, .hot = 1}});
  EXPECT_NE(made.status().message().find("--batch-invariant"), std::string::npos);
}

// The device has no room for what the host has.
TEST(HostExpertsOnCuda, AreCountedWhereTheyAre) {
  const auto experts = [](const std::vector<MemoryPart>& parts) {
    double bytes = 0;
    for (const MemoryPart& p : parts) bytes += p.name == kExpertsPart ? p.bytes : 0;
    return bytes;
  };
  Model all(0), some(1), none(kLayers);
  const auto here = [&](Model& m) { return experts(m.backend().memory(m.model_config(), m.weights(), {})); };
  const auto there = [&](Model& m) {
    return experts(m.backend().host_placement()->host_memory(m.model_config(), m.weights()));
  };
  EXPECT_GT(here(all), 0);
  EXPECT_NEAR(here(some), here(all) * 2 / 3, 1);
  EXPECT_EQ(here(none), 0);
  EXPECT_EQ(there(all), 0);
  EXPECT_NEAR(there(some), there(none) / 3, 1);
  Model streamed(2, 9);
  const std::vector<MemoryPart> parts =
      streamed.backend().host_placement()->host_memory(streamed.model_config(), streamed.weights());
  EXPECT_EQ(parts.front().name, kLockedExpertsPart);
  EXPECT_NEAR(parts.front().bytes, 2 * there(some), 1);
  const auto room = [](Model& m) {
    double bytes = 0;
    for (const MemoryPart& p : m.backend().memory(m.model_config(), m.weights(), {}))
      bytes += p.name == kStreamPart ? p.bytes : 0;
    return bytes;
  };
  EXPECT_EQ(room(some), 0);
  EXPECT_GT(room(streamed), 2 * here(all) / 3);
  EXPECT_EQ(all.backend().host_placement()->host_name(), "");
  EXPECT_NE(some.backend().host_placement()->host_name().find("2 threads"), std::string::npos);
}

// A model is loaded again in the same backend, placed otherwise.
TEST(HostExpertsOnCuda, CanBeLoadedAgain) {
  Model model(2);
  const std::vector<float> want = model.step({4, 2});
  ASSERT_EQ(model.status().message(), "");
  for (const int layers : {0, 1, kLayers}) {
    model.load(layers);
    const std::vector<float> got = model.step({4, 2});
    ASSERT_EQ(model.status().message(), "");
    EXPECT_LT(relative_error(got, want), kTolerance) << layers;
  }
}

// Who loads a model without a plan gets what was asked for.
TEST(HostExpertsOnCuda, ArePlacedAsAskedFor) {
  const ModelConfig c = small_config(kLayers);
  const ModelWeights weights = make_random_model(c, {});
  for (const auto& [asked, layers] :
       {std::pair{2, 2}, {99, kLayers}, {ExpertPlacement::kAllLayers, kLayers}}) {
    auto made = create_cuda_backend(
        {.threads = 1, .max_rows = kMaxRows, .tune = false, .experts = {.host_layers = asked}});
    ASSERT_EQ(made.value()->load(c, weights, {}).message(), "");
    EXPECT_EQ(made.value()->host_placement()->host_layers(), layers);
  }
}

// The device samples, and the next step is launched before its tokens are taken.
TEST(HostExpertsOnCuda, AutomaticWithoutAPlanIsWhatFits) {
  const ModelConfig c = small_config(kLayers);
  const ModelWeights weights = make_random_model(c, {});
  for (const auto& [gpu_memory, layers] : {std::pair{1e18, 0}, {1.0, kLayers}}) {
    auto made = create_cuda_backend({.threads = 1,
                                     .max_rows = kMaxRows,
                                     .tune = false,
                                     .experts = {.automatic = true, .stream_rows = ExpertPlacement::kNever},
                                     .gpu_memory = gpu_memory});
    EXPECT_TRUE(made.value()->caps().int8_experts);
    ASSERT_EQ(made.value()->load(c, weights, {}).message(), "");
    EXPECT_EQ(made.value()->host_placement()->host_layers(), layers);
    EXPECT_EQ(made.value()->caps().int8_experts, layers > 0);
  }
}

TEST(HostExpertsOnCuda, TwoStepsInFlight) {
  Model device(0), host(2);
  const std::vector<int32_t> want = device.two_steps(), got = host.two_steps();
  ASSERT_EQ(host.status().message(), "");
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace moesaic::cuda
