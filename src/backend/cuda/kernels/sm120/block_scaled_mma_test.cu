// The device's block-scaled MMA and quantiser against the host's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/kernels/ptx/block_scaled_mma.cuh"
#include "backend/cuda/kernels/sm120/block_scaled_mma.h"
#include "backend/cuda/kernels/sm120/quantize.cuh"
#include "backend/cuda/testing/on_device.h"

namespace moesaic::cuda::sm120 {
namespace {

constexpr int kGroups = 4;

struct DeviceOperands {
  uint32_t a[kLanes][4], b[kLanes][2], scales_a[kLanes], scales_b[kLanes];
};

template <Element kA, int kStep, int kTile, int kColumn>
__device__ void one(const DeviceOperands& in, float* out) {
  const int lane = threadIdx.x;
  FragmentA a;
  for (int i = 0; i < 4; ++i) a.a[i] = in.a[lane][i];
  const uint32_t scales[1] = {in.scales_b[lane]};
  float d[4] = {1, 2, 3, 4};
  mma<kA, kStep, kTile, kColumn>(d, a, in.b[lane][0], in.b[lane][1], RowScales(in.scales_a[lane]),
                                 ColumnScales<kGroups>(scales));
  for (int i = 0; i < 4; ++i) out[((kStep * 2 + kTile) * kGroups + kColumn) * 128 + 4 * lane + i] = d[i];
  if constexpr (kColumn + 1 < kGroups) {
    one<kA, kStep, kTile, kColumn + 1>(in, out);
  } else if constexpr (kTile == 0) {
    one<kA, kStep, 1, 0>(in, out);
  } else if constexpr (kStep + 1 < kQuad) {
    one<kA, kStep + 1, 0, 0>(in, out);
  }
}
template <Element kA>
__global__ void mma_kernel(const DeviceOperands* in, float* out) {
  one<kA, 0, 0, 0>(*in, out);
}

// A warp a block of 32 values: codes, a byte each, then the scale.
__global__ void quantise_kernel(const float* x, uint8_t* out) {
  const float v = x[blockIdx.x * 32 + threadIdx.x];
  const uint32_t scale = e8m0_of(__reduce_max_sync(0xFFFFFFFFu, magnitude_bits(v)));
  out[blockIdx.x * 33 + threadIdx.x] = static_cast<uint8_t>(code_of(v, inverse_of(scale)));
  if (threadIdx.x == 0) out[blockIdx.x * 33 + 32] = static_cast<uint8_t>(scale);
}

class BlockScaledMma : public OnDevice {
 protected:
  void expect_the_hosts(Element a);
};

uint32_t random_e4m3(std::mt19937& rng) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= (rng() % 0x7F | (rng() & 0x80)) << (8 * i);
  return word;
}

TEST_F(BlockScaledMma, OfE2M1IsTheHosts) { expect_the_hosts(Element::kE2M1); }
TEST_F(BlockScaledMma, OfE4M3IsTheHosts) { expect_the_hosts(Element::kE4M3); }

// Every selector of step, tile and group.
void BlockScaledMma::expect_the_hosts(Element a) {
  const bool eight_bits = a == Element::kE4M3;
  std::mt19937 rng(9);
  WarpOperands in;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (uint32_t& word : in.a[lane])
      word = eight_bits ? random_e4m3(rng) : static_cast<uint32_t>(rng()) & kContainers;
    for (uint32_t& word : in.b[lane]) word = random_e4m3(rng);
    in.scales_a[lane] = in.scales_b[lane] = 0;
    for (int i = 0; i < 4; ++i) {
      in.scales_a[lane] |= (112 + rng() % 24) << (8 * i);
      in.scales_b[lane] |= (112 + rng() % 24) << (8 * i);
    }
  }
  DeviceOperands operands{};
  std::memcpy(operands.a, in.a.data(), sizeof(operands.a));
  std::memcpy(operands.b, in.b.data(), sizeof(operands.b));
  std::memcpy(operands.scales_a, in.scales_a.data(), sizeof(operands.scales_a));
  std::memcpy(operands.scales_b, in.scales_b.data(), sizeof(operands.scales_b));
  constexpr int kMmas = 4 * 2 * kGroups;
  const DeviceBuffer device = DeviceBuffer::allocate(sizeof(operands), "test").value(),
                     out = DeviceBuffer::allocate(kMmas * 128 * 4, "test").value();
  ASSERT_EQ(cudaMemcpy(device.as<void>(), &operands, sizeof(operands), cudaMemcpyHostToDevice), 0);
  const auto kernel = eight_bits ? mma_kernel<Element::kE4M3> : mma_kernel<Element::kE2M1>;
  kernel<<<1, 32>>>(device.as<DeviceOperands>(), out.as<float>());
  std::vector<float> got(kMmas * 128);
  ASSERT_EQ(cudaMemcpy(got.data(), out.as<float>(), got.size() * 4, cudaMemcpyDeviceToHost), 0);
  // Rows and columns have scales of their own: what rounding may change is a share of the largest that a lane
  // could hold, 32 products of at most 6 * 448, or 448 * 448.
  const double largest = 32.0 * (eight_bits ? 448 : 6) * 448;
  for (int step = 0; step < kQuad; ++step) {
    for (int tile = 0; tile < 2; ++tile) {
      for (int column = 0; column < kGroups; ++column) {
        WarpSums want{};
        for (auto& lane : want) lane = {1, 2, 3, 4};
        mma_on_host(a, in, step, tile, column, want);
        for (int lane = 0; lane < kLanes; ++lane) {
          for (int i = 0; i < 4; ++i) {
            const uint32_t sa = in.scales_a[lane / 4 * 4 + 2 * tile + i / 2] >> (8 * step) & 255,
                           sb = in.scales_b[4 * (2 * (lane % 4) + i % 2) + column] >> (8 * step) & 255;
            const double size = std::exp2(static_cast<int>(sa + sb) - 254) * largest;
            EXPECT_NEAR(got[((step * 2 + tile) * kGroups + column) * 128 + 4 * lane + i], want[lane][i],
                        0x1p-22 * (size + 5))
                << step << tile << column << " lane " << lane << " " << i;
          }
        }
      }
    }
  }
}

TEST_F(BlockScaledMma, QuantiserIsTheHosts) {
  std::mt19937 rng(10);
  std::vector<float> x;
  const auto block = [&](auto&& value) {
    for (int i = 0; i < 32; ++i) x.push_back(value(i));
  };
  for (int n = 0; n < 200; ++n) {
    // All exponents, subnormals included.
    const float size = std::ldexp(1.0f, static_cast<int>(rng() % 270) - 148);
    block([&](int) { return size * (static_cast<float>(rng() % 2001) / 1000.0f - 1.0f); });
  }
  block([](int) { return 0.0f; });
  block([](int i) { return i == 7 ? -448.0f : i == 8 ? 511.9f : 1.0f; });
  block([](int i) { return i == 31 ? NAN : 1.0f; });
  block([](int i) { return i == 0 ? -INFINITY : 1.0f; });
  block([](int i) { return (1.0f + static_cast<float>(i) / 16.0f); });  // ties
  block([](int i) { return i == 0 ? -0.0f : i == 1 ? 3.4e38f : 1e38f / static_cast<float>(i); });
  const size_t blocks = x.size() / 32;
  const DeviceBuffer in = DeviceBuffer::allocate(x.size() * 4, "test").value(),
                     out = DeviceBuffer::allocate(blocks * 33, "test").value();
  ASSERT_EQ(cudaMemcpy(in.as<float>(), x.data(), x.size() * 4, cudaMemcpyHostToDevice), 0);
  quantise_kernel<<<static_cast<unsigned>(blocks), 32>>>(in.as<float>(), out.as<uint8_t>());
  std::vector<uint8_t> got(blocks * 33);
  ASSERT_EQ(cudaMemcpy(got.data(), out.as<uint8_t>(), got.size(), cudaMemcpyDeviceToHost), 0);
  for (size_t b = 0; b < blocks; ++b) {
    uint8_t want[33];
    want[32] = mx::quantize_mxfp8(x.data() + b * 32, want);
    EXPECT_EQ(std::memcmp(want, got.data() + b * 33, 33), 0) << b << " scale " << int{want[32]};
  }
}

}  // namespace
}  // namespace moesaic::cuda::sm120
