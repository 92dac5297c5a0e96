#include "backend/cuda/runtime/step_wait.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {
namespace {

TEST(StepWait, EndsWithWhatItWaitsFor) {
  int left = 1000;
  const auto query = [&] { return left-- > 0 ? cudaErrorNotReady : cudaSuccess; };
  EXPECT_TRUE(StepWait(60).until(query, "step").ok());
  EXPECT_EQ(left, -1);
  left = 10;
  EXPECT_TRUE(StepWait(0).until(query, "step").ok());
  const Status fault = StepWait(60).until([] { return cudaErrorIllegalAddress; }, "step");
  EXPECT_EQ(fault.code(), StatusCode::kInternal);
  EXPECT_FALSE(device_is_lost());
}

// As if the process were stopped behind a question for longer than the limit.
TEST(StepWait, AStoppedProcessDoesNotLoseItsDevice) {
  int asked = 0;
  const auto query = [&] {
    if (++asked == 3) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return asked > 4 ? cudaSuccess : cudaErrorNotReady;
  };
  EXPECT_EQ(StepWait(0.1).until(query, "step").message(), "");
  EXPECT_FALSE(device_is_lost());
}

// Each look counts for a whole slice, a twentieth of the limit, however slow the machine is.
TEST(StepWait, CountsFromTheLastProgress) {
  uint32_t looks = 0;
  const auto query = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(6));
    return ++looks > 60 ? cudaSuccess : cudaErrorNotReady;
  };
  EXPECT_EQ(StepWait(0.1, [&] { return looks / 10; }).until(query, "step").message(), "");
  EXPECT_FALSE(device_is_lost());
}

// In a process of its own, since a lost device stays lost.
TEST(StepWaitDeathTest, EndsAtItsLimit) {
  EXPECT_EXIT(
      {
        const auto never = [] { return cudaErrorNotReady; };
        const Status late = StepWait(0.02).until(never, "step");
        const Status next = StepWait(60).until(never, "step");
        const bool right = late.code() == StatusCode::kInternal && device_is_lost() &&
                           late.message().find("has not ended it for 0.02 s") != std::string::npos &&
                           late.message().find('\n') == std::string::npos &&
                           next.message() == lost_device().message();
        std::_Exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace moesaic::cuda
