#include "backend/cuda/runtime/free_memory.h"

#include <gtest/gtest.h>

#include <limits>

namespace moesaic::cuda {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

TEST(FreeMemory, OfACardIsTheDrivers) {
  EXPECT_EQ(free_memory({.host_available = 500e9, .device_free = 141e9}), 141e9);
  EXPECT_EQ(free_memory({.host_available = 1e9, .device_free = 141e9}), 141e9);
  EXPECT_EQ(free_memory({.host_available = 500e9}), 0);
}

// A GB10 that has read 65 GB of checkpoint: the page cache can be had.
TEST(FreeMemory, OfAnIntegratedDeviceIsTheHosts) {
  EXPECT_EQ(free_memory({.integrated = true, .host_available = 116e9, .device_free = 41e9}), 116e9);
  EXPECT_EQ(free_memory({.integrated = true, .host_available = 116e9}), 116e9);
  EXPECT_EQ(free_memory({.integrated = true, .host_available = 20e9, .device_free = 41e9}), 20e9);
}

TEST(FreeMemory, OfAnIntegratedDeviceIsTheDriversWhereLinuxIsSilent) {
  EXPECT_EQ(free_memory({.integrated = true, .host_available = kUnknown, .device_free = 41e9}), 41e9);
}

}  // namespace
}  // namespace moesaic::cuda
