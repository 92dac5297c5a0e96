// A tile compiled at run time gives the bits of the program's own.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backend/cuda/kernels/sm120/run_tile.cuh"
#include "backend/cuda/testing/on_device.h"

namespace moesaic::cuda::sm120a {
namespace {

template <Element kA, Element kB>
void expect_the_programs_own() {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  // Random bytes are no zeros for E2M1's absent block: an even number of them.
  constexpr int kRows = 64, kCols = kB == Element::kE2M1 ? 192 : 160, kTokens = 5;
  std::mt19937 rng(15);
  const auto bytes = [&](size_t count, uint32_t least, uint32_t most) {
    std::vector<uint8_t> v(count);
    for (uint8_t& x : v) x = static_cast<uint8_t>(least + rng() % (most - least));
    return v;
  };
  // Any bytes are codes and scales: not NaN, of a moderate size.
  const auto weights = bytes(kRows / kUnit * unit_bytes(kA, kCols / kBlock), 100, 126),
             tokens = bytes(token_buffer_bytes(kTokens, 1, kCols), 100, 126);
  const DeviceBuffer w = upload(weights), x = upload(tokens), out = poisoned(kRows * kTokens * 4),
                     own = poisoned(kRows * kTokens * 4);
  const Weights matrix{w.as<uint8_t>(), kRows / kUnit, kA};
  Tokens input = dense_tokens(x.as<void>(), kCols, kTokens);
  input.element = kB;
  Store store{.out = own.as<float>(), .stride = kRows, .rows = kRows};
  ASSERT_TRUE(gemm(matrix, input, Tile::k8, store, nullptr).ok());
  const auto code =
      compiled_tile(tile_name(kA, kB, Tile::k8, kRowUnits, "Store"), device_code().value().architecture);
  ASSERT_TRUE(code.ok()) << code.status().message();
  store.out = out.as<float>();
  ASSERT_TRUE(run(few_kernel<kA, kB, 1, kRowUnits, Store>, code, product_of(matrix, input, Tile::k8),
                  kRowUnits, kFewWarps, kFewShared<kA, 1, kRowUnits>, nullptr, store)
                  .ok());
  const auto want = download<float>(own, kRows * kTokens);
  EXPECT_EQ(download<float>(out, kRows * kTokens), want);
  for (const float v : want) EXPECT_GT(std::fabs(v), 0.0f);
}

TEST_F(OnDevice, ACompiledTileIsTheProgramsOwn) { expect_the_programs_own<Element::kE4M3, Element::kE4M3>(); }
TEST_F(OnDevice, ACompiledTileOfE2M1TokensIsTheProgramsOwn) {
  expect_the_programs_own<Element::kE2M1, Element::kE2M1>();
}

}  // namespace
}  // namespace moesaic::cuda::sm120a
