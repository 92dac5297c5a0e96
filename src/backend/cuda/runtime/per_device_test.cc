#include "backend/cuda/runtime/per_device.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace moesaic::cuda {
namespace {

// Stands in for the driver, whose attributes hold for one device.
struct Driver {
  std::vector<std::atomic<int>> calls = std::vector<std::atomic<int>>(PerDevice<int>::kMostDevices);
  Status set(int device) {
    ++calls[static_cast<size_t>(device)];
    return {};
  }
};

TEST(OncePerDevice, SetsUpEachDevice) {
  Driver driver;
  OncePerDevice once;
  for (int launch = 0; launch < 3; ++launch) {
    for (const int device : {0, 1, 63})
      ASSERT_TRUE(once.run_for(device, [&] { return driver.set(device); }).ok());
  }
  EXPECT_EQ(driver.calls[0], 1);
  EXPECT_EQ(driver.calls[1], 1);
  EXPECT_EQ(driver.calls[2], 0);
  EXPECT_EQ(driver.calls[63], 1);
}

// Whoever comes second waits for the set-up, or finds it done.
TEST(OncePerDevice, SetsUpOnceForAllThreads) {
  constexpr int kRounds = 200, kThreads = 4;
  for (int round = 0; round < kRounds; ++round) {
    Driver driver;
    OncePerDevice once;
    std::atomic<int> ready = 0, early = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, device = t % 2] {
        for (++ready; ready < kThreads;) std::this_thread::yield();
        if (!once.run_for(device, [&] { return driver.set(device); }).ok() || driver.calls[device] != 1)
          ++early;
      });
    }
    for (std::thread& t : threads) t.join();
    ASSERT_EQ(early, 0);
    ASSERT_EQ(driver.calls[0], 1);
    ASSERT_EQ(driver.calls[1], 1);
  }
}

TEST(PerDevice, KeepsAValueForEach) {
  PerDevice<int> clusters;
  const auto make = [](int value) { return [value] { return Result<int>(value); }; };
  EXPECT_EQ(clusters.get_for(0, make(33)).value(), 33);
  EXPECT_EQ(clusters.get_for(1, make(28)).value(), 28);
  EXPECT_EQ(clusters.get_for(0, make(1)).value(), 33);
  EXPECT_EQ(clusters.get_for(1, make(1)).value(), 28);
}

TEST(PerDevice, TriesAgainAfterAnError) {
  PerDevice<int> value;
  const Result<int> failed =
      value.get_for(0, [] { return Result<int>(Status(StatusCode::kInternal, "no code")); });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().message(), "no code");
  EXPECT_EQ(value.get_for(0, [] { return Result<int>(7); }).value(), 7);
}

TEST(PerDevice, RefusesDevicesBeyondItsRoom) {
  PerDevice<int> value;
  for (const int device : {-1, PerDevice<int>::kMostDevices})
    EXPECT_FALSE(value.get_for(device, [] { return Result<int>(7); }).ok());
}

}  // namespace
}  // namespace moesaic::cuda
