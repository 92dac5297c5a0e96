// The step operator on a GPU against the backend's own steps: prompts, decoding, parts, padding, replayed
// graphs.
#include <cuda_runtime.h>

#include "model/small_config_test.h"
#include "model/step_operator_test.h"

namespace moesaic {
namespace {

struct ManagedMemory {
  static void* allocate(size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocManaged(&memory, bytes), cudaSuccess);  // until the process ends
    return memory;
  }
  static const std::byte* copy_to_device(const std::byte* data, size_t bytes) {
    void* copy = nullptr;
    EXPECT_EQ(cudaMalloc(&copy, bytes), cudaSuccess);  // until the process ends
    EXPECT_EQ(cudaMemcpy(copy, data, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return static_cast<const std::byte*>(copy);
  }
  static void wait() { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }
  static Result<std::unique_ptr<Backend>> cuda_backend(const BackendOptions& options) {
    return create_backend("cuda", options);
  }
};
using Both = StepOperatorAndBackend<ManagedMemory>;

// The fused norm of the backend's last product may add in another order than the norm alone; parts of a step
// may have other kernels than the whole.
constexpr double kTolerance = 1e-3, kPartsTolerance = 5e-3;

// gpt-oss's layers, two of them with few experts.
ModelConfig gpt_oss_layers() {
  ModelConfig config = small_config(2);
  config.hidden = config.intermediate = 2880;
  config.heads = 64, config.kv_heads = 8, config.head_dim = 64;
  return config;
}

class StepOperatorOnCuda : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  }
  static ModelConfig config() { return GetParam() ? gpt_oss_layers() : small_config(3); }
};

TEST_P(StepOperatorOnCuda, AnswersAsTheBackendDoes) {
  Both both(config(), 512);
  const std::vector<std::vector<int>> steps = {{300},     {1, 40, 9},     {1, 1, 1},    {1, 1, 1},
                                               {8, 1, 3}, {1, 0, 130, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}};
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_LT(both.step(steps[i]), kTolerance) << "step " << i;
  for (int i = 0; i < 6; ++i)
    EXPECT_LT(both.step({1, 1, 1, 1}, i % 3), kTolerance) << i;  // over a page's end
}

TEST_P(StepOperatorOnCuda, RunsLargeStepsInParts) {
  Both both(config(), 70);
  EXPECT_LT(both.step({200, 31, 64}), kPartsTolerance);
  EXPECT_LT(both.step({1, 100, 1}), kPartsTolerance);
  EXPECT_LT(both.step({1, 1, 1}), kPartsTolerance);
}

TEST_P(StepOperatorOnCuda, TakesPagesThatStandFurtherApart) {
  Both both(config(), 512, 5);
  EXPECT_LT(both.step({150, 33}), kTolerance);
  EXPECT_LT(both.step({1, 1}), kTolerance);
}

TEST_P(StepOperatorOnCuda, TakesWeightsFromTheDevicesMemory) {
  Both both(config(), 512, 2, true);
  EXPECT_LT(both.step({150, 33}), kTolerance);
  EXPECT_LT(both.step({1, 1}), kTolerance);
}

TEST_P(StepOperatorOnCuda, WhatAFaultLeavesInAPageHarmsNobody) {
  Both both(config(), 512, 2, false, true);
  expect_that_a_fault_harms_nobody(both);
}

TEST_P(StepOperatorOnCuda, NoPositionIsBeyondTheLongest) {
  Both both(config(), 512);
  expect_that_no_position_is_beyond_the_longest(both);
}

INSTANTIATE_TEST_SUITE_P(Sizes, StepOperatorOnCuda, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "GptOss" : "Small"; });

}  // namespace
}  // namespace moesaic
