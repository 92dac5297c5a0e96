#include "backend/cuda/runtime/features.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace moesaic::cuda {
namespace {

TEST(Features, AreThoseOfTheDeviceAndOfItsCode) {
  constexpr unsigned kSince90 = kBulkCopies | kClusters | kProgrammaticLaunch | kFp8Mma;
  for (const int minor : {0, 6, 7}) EXPECT_EQ(features_of(8, minor, 80 + minor).has, 0u);
  EXPECT_EQ(features_of(8, 9, 89).has, kFp8Mma);
  EXPECT_EQ(features_of(8, 9, 86).has, 0u);
  EXPECT_EQ(features_of(9, 0, 90).has, kSince90 | kFewRowKernels | kWgmma);
  for (const int code : {90, 100})
    EXPECT_EQ(features_of(10, 0, code).has, (kSince90 | kFewRowKernels) & ~unsigned{kFp8Mma});
  for (const int minor : {0, 1}) EXPECT_EQ(features_of(12, minor, 120).has, kSince90 | kBlockScaledMma);
  // Code of 8.0 neither waits for its predecessor nor has barriers of bulk copies, wherever it runs.
  for (const int major : {9, 10, 12}) EXPECT_EQ(features_of(major, 0, 80).has, 0u);
}

TEST(Features, SharedMemoryOfABlock) {
  const auto kilobytes = [](int major, int minor) {
    return features_of(major, minor, 10 * major + minor).shared_per_block / 1024;
  };
  EXPECT_EQ(kilobytes(8, 0), 163u);
  EXPECT_EQ(kilobytes(8, 6), 99u);
  EXPECT_EQ(kilobytes(8, 7), 163u);
  EXPECT_EQ(kilobytes(8, 9), 99u);
  EXPECT_EQ(kilobytes(9, 0), 227u);
  EXPECT_EQ(kilobytes(12, 0), 99u);
  EXPECT_EQ(kilobytes(12, 1), 99u);
}

TEST(Features, WithLessSharedMemory) {
  const Features hopper = features_of(9, 0, 90), less = with_shared(hopper, 99 * 1024);
  EXPECT_EQ(less.shared_per_block, 99u * 1024);
  EXPECT_EQ(less.has, hopper.has & ~unsigned{kWgmma | kLargeShared});
  for (const Features& same : {with_shared(hopper, 227 * 1024), with_shared(hopper, SIZE_MAX)}) {
    EXPECT_EQ(same.shared_per_block, hopper.shared_per_block);
    EXPECT_EQ(same.has, hopper.has);
  }
  EXPECT_EQ(with_shared(features_of(8, 6, 80), 163 * 1024).shared_per_block, 99u * 1024);
}

TEST(Features, InWords) {
  EXPECT_EQ(describe(features_of(8, 6, 86)), "those of 8.0; 99 KB of shared memory a block");
  EXPECT_EQ(
      describe(features_of(9, 0, 90)),
      "bulk copies, clusters, clusters of 16, early launch, wgmma, FP8 MMA; 227 KB of shared memory a block");
}

TEST(Features, HaveWhatIsNeeded) {
  const Features some{.has = kBulkCopies | kClusters};
  EXPECT_TRUE(some.have(0) && some.have(kClusters) && some.have(kBulkCopies | kClusters));
  EXPECT_FALSE(some.have(kWgmma) || some.have(kWgmma | kClusters));
}

}  // namespace
}  // namespace moesaic::cuda
