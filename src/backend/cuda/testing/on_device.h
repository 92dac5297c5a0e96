// Helpers for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cuda/runtime/device.h"
#include "mx/block.h"

namespace moesaic::cuda::sm120 {

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  }
};

template <typename T>
DeviceBuffer upload(const std::vector<T>& values) {
  DeviceBuffer buffer = DeviceBuffer::allocate(values.size() * sizeof(T), "test").value();
  EXPECT_EQ(cudaMemcpy(buffer.as<T>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), 0);
  return buffer;
}
template <typename T>
std::vector<T> download(const DeviceBuffer& buffer, size_t count) {
  std::vector<T> values(count);
  EXPECT_EQ(cudaMemcpy(values.data(), buffer.as<T>(), count * sizeof(T), cudaMemcpyDeviceToHost), 0);
  return values;
}
// Room in which every byte is 0xFF: NaN as F32, BF16, E4M3 and E8M0.
inline DeviceBuffer poisoned(size_t bytes) {
  DeviceBuffer buffer = DeviceBuffer::allocate(bytes, "test").value();
  EXPECT_EQ(cudaMemset(buffer.as<void>(), 0xFF, bytes), 0);
  return buffer;
}

struct Dot {
  double sum = 0, size = 0;  // and the sum of magnitudes
  // Rounding may change a sum by this: a step of the block-scaled MMA sums 33 or 65 numbers, and there is at
  // most one for each block.
  double bound(int cols) const {
    const int blocks = cols / mx::kBlock;
    return size * 0x1p-23 * (blocks + 65);
  }
};
inline Dot dot(const float* a, const float* b, int n) {
  Dot d;
  for (int i = 0; i < n; ++i) d.sum += double{a[i]} * b[i], d.size += std::fabs(double{a[i]} * b[i]);
  return d;
}

}  // namespace moesaic::cuda::sm120
