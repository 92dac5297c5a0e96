#include "backend/cuda/runtime/device_guard.h"

#include <gtest/gtest.h>

#include <thread>

namespace moesaic::cuda {
namespace {

// CUDA's state of a thread: device 0 until another is set.
struct ThreadState {
  int device = 0, sets = 0;
  bool used = false;
};
thread_local ThreadState state;

constexpr int kDevices = 2;
const DeviceCalls kCalls = {.has_context = [] { return state.used; },
                            .get =
                                [](int* device) {
                                  *device = state.device;
                                  return cudaSuccess;
                                },
                            .set =
                                [](int device) {
                                  if (device >= kDevices) return cudaErrorInvalidDevice;
                                  state = {.device = device, .sets = state.sets + 1, .used = true};
                                  return cudaSuccess;
                                }};

class Guard : public testing::Test {
 protected:
  void SetUp() override { state = {.used = true}; }
};

TEST_F(Guard, RestoresTheCallersDevice) {
  {
    const DeviceGuard guard(1, kCalls);
    EXPECT_TRUE(guard.status().ok());
    EXPECT_EQ(state.device, 1);
  }
  EXPECT_EQ(state.device, 0);
}

TEST_F(Guard, SetsNothingWhereTheDeviceIsTheThreads) {
  { const DeviceGuard guard(0, kCalls); }
  EXPECT_EQ(state.sets, 0);
  const DeviceGuard outer(1, kCalls);
  { const DeviceGuard inner(1, kCalls); }
  EXPECT_EQ(state.sets, 1);
  EXPECT_EQ(state.device, 1);
}

// No memory is taken on the default device for a context that nobody asked for.
TEST_F(Guard, AFreshThreadKeepsTheDevice) {
  std::thread([] {
    { const DeviceGuard guard(1, kCalls); }
    EXPECT_EQ(state.device, 1);
    EXPECT_EQ(state.sets, 1);
  }).join();
}

TEST_F(Guard, EachThreadHasItsOwn) {
  const DeviceGuard guard(1, kCalls);
  std::thread([] {
    state.used = true;
    const DeviceGuard zero(0, kCalls);
    EXPECT_EQ(state.device, 0);
  }).join();
  EXPECT_EQ(state.device, 1);
}

TEST_F(Guard, TellsOfADeviceThatIsNotThere) {
  const DeviceGuard guard(kDevices, kCalls);
  EXPECT_FALSE(guard.status().ok());
  EXPECT_EQ(state.device, 0);
}

}  // namespace
}  // namespace moesaic::cuda
