// A tile compiled at run time gives the bits of the program's own.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backend/cuda/kernels/sm120/run_tile.cuh"
#include "backend/cuda/testing/on_device.h"

namespace moesaic::cuda::sm120 {
namespace {

TEST_F(OnDevice, ACompiledTileIsTheProgramsOwn) {
  constexpr Element kA = Element::kE4M3;
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  constexpr int kRows = 64, kCols = 160, kTokens = 5;
  std::mt19937 rng(15);
  const auto bytes = [&](size_t count, uint32_t least, uint32_t most) {
    std::vector<uint8_t> v(count);
    for (uint8_t& x : v) x = static_cast<uint8_t>(least + rng() % (most - least));
    return v;
  };
  // Any bytes are codes and scales: not NaN, of a moderate size.
  const auto weights = bytes(kRows / kWeightTileRows * weight_tile_bytes(kA, kCols / kBlock), 100, 126),
             tokens = bytes(token_buffer_bytes(kTokens, 1, kCols), 100, 126);
  const DeviceBuffer w = upload(weights), x = upload(tokens), out = poisoned(kRows * kTokens * 4),
                     own = poisoned(kRows * kTokens * 4);
  const QuadWeights matrix{w.as<uint8_t>(), kRows / kWeightTileRows, kA};
  const Tokens input = dense_tokens(x.as<void>(), kCols, kTokens, 1);
  Store store{.out = own.as<float>(), .stride = kRows, .rows = kRows};
  ASSERT_TRUE(gemm(matrix, input, Tile::k8, store, nullptr).ok());
  const auto code =
      compiled_tile(tile_name(kA, Tile::k8, kRowWeightTiles, "Store"), device_code().value().architecture);
  ASSERT_TRUE(code.ok()) << code.status().message();
  store.out = out.as<float>();
  ASSERT_TRUE(run(block_scaled_small_m_kernel<kA, 1, kRowWeightTiles, Store>, code, product_of(matrix, input),
                  kRowWeightTiles, kSmallMWarps, kSmallMShared<kA, 1, kRowWeightTiles>, nullptr, store)
                  .ok());
  const auto want = download<float>(own, kRows * kTokens);
  EXPECT_EQ(download<float>(out, kRows * kTokens), want);
  for (const float v : want) EXPECT_GT(std::fabs(v), 0.0f);
}

}  // namespace
}  // namespace moesaic::cuda::sm120
