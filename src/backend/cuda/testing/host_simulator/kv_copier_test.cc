// Tests of kv_copier.h: pages come back, and a GPU that hangs does not keep its caller.
#include "backend/cuda/kv_copier.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/testing/host_simulator/captures.h"

namespace moesaic::cuda {
namespace {

constexpr size_t kHalf = 64, kPageBytes = 2 * kHalf;
constexpr int kCopiedPages = 3, kCopiedLayers = 2;

std::vector<Layer> layers() {
  std::vector<Layer> all(kCopiedLayers);
  for (Layer& layer : all) {
    layer.k = DeviceBuffer::allocate(kCopiedPages * kHalf, "K").value();
    layer.v = DeviceBuffer::allocate(kCopiedPages * kHalf, "V").value();
  }
  return all;
}

TEST(KvCopier, APageComesBack) {
  const std::vector<Layer> all = layers();
  const auto copier = make_kv_copier(0, all, kPageBytes, StepWait(1));
  ASSERT_NE(copier, nullptr);
  const std::vector<int> both = {0, 1};
  std::vector<std::byte> bytes(kCopiedLayers * kPageBytes), back(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(copier->write(both, 1, bytes).message(), "");
  EXPECT_EQ(copier->read(both, 1, back).message(), "");
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(copier->read(both, 2, back).message(), "");
  EXPECT_EQ(back, std::vector<std::byte>(bytes.size()));
}

// In a process of its own, since a lost device stays lost. What it copies may still read the buffer.
TEST(KvCopierDeathTest, AGpuThatHangsEndsIt) {
  EXPECT_EXIT(
      {
        const std::vector<Layer> all = layers();
        const auto copier = make_kv_copier(0, all, kPageBytes, StepWait(0.02));
        const std::vector<int> first = {0};
        std::vector<std::byte> bytes(kPageBytes);
        on_host::captures().hangs = true;
        const Status late = copier->write(first, 1, bytes);
        on_host::captures().hangs = false;
        const Status next = copier->read(first, 1, bytes);
        const bool right = device_is_lost() && late.message().find("has not ended it") != std::string::npos &&
                           next.message() == late.message();
        std::_Exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace moesaic::cuda
