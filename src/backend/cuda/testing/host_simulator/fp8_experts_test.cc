// The experts' products with activations in E4M3 (kernels/common/gemm_fp8.h) in the simulator, against sums
// in double precision.
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/common/gemm_fp8.h"
#include "backend/cuda/kernels/common/repack.h"
#include "backend/cuda/ops/experts.h"
#include "base/relative_error_test.h"
#include "mx/formats.h"

namespace moesaic::cuda {
namespace {

constexpr int kExperts = 3, kTopK = 2;
constexpr float kFactor = 512;  // F16 rows have it
// Rounding to E4M3 is 2.6% of a value, of x and h: model/verify.cpp's kFp8ExpertsTolerance.
constexpr double kRoundedTolerance = 0.1;

double e4m3(double x, double scale) {
  return mx::decode_e4m3(mx::encode_e4m3(static_cast<float>(x * scale))) / scale;
}
double f16(double x) { return __half2float(__float2half_rn(static_cast<float>(x))); }

// Rows of all experts, in MXFP4 as they are stored.
struct Section {
  int rows, cols;
  std::vector<uint8_t> codes, scales;
  std::vector<float> bias;
  Section(int r, int c, std::mt19937& rng) : rows(r), cols(c) {
    codes.resize(size_t{kExperts} * rows * cols / 2);
    scales.resize(size_t{kExperts} * rows * cols / kBlock);
    bias.resize(size_t{kExperts} * rows);
    for (uint8_t& x : codes) x = static_cast<uint8_t>(rng());
    for (uint8_t& x : scales) x = static_cast<uint8_t>(rng() % 8 == 0 ? 90 : 120 + rng() % 4);
    for (float& x : bias) x = static_cast<float>(static_cast<int>(rng() % 256) - 128) / 256;
  }
  Raw raw() const {
    return {.format = Format::kMxfp4,
            .rows = rows,
            .row_stride = cols / 2,
            .scale_stride = cols / kBlock,
            .data = codes.data(),
            .scales = scales.data(),
            .expert_stride = int64_t{rows} * cols / 2,
            .expert_scale_stride = int64_t{rows} * cols / kBlock};
  }
  double times(int expert, int row, const std::vector<double>& x) const {
    const size_t at = static_cast<size_t>(expert) * rows + row;
    double sum = bias[at];
    for (int i = 0; i < cols; ++i) {
      const uint8_t byte = codes[at * (cols / 2) + i / 2];
      sum += std::ldexp(mx::decode_e2m1(i % 2 == 0 ? byte & 15 : byte >> 4),
                        scales[at * (cols / kBlock) + i / kBlock] - 127) *
             x[i];
    }
    return sum;
  }
};

Matrix matrix_of(const Section& first, const Section& second, RowOrder order, int64_t rows, int* fault) {
  Matrix w;
  w.kind = Kind::kMxfp4, w.order = order, w.rows = rows, w.cols = first.cols, w.experts = kExperts;
  w.weight_tiles = weight_tiles_of(rows);
  const int64_t tiles = kExperts * w.weight_tiles;
  w.data = DeviceBuffer::allocate(tiles * w.weight_tile_bytes(), "a test").value();
  w.scales = DeviceBuffer::allocate(tiles * w.weight_tile_scale_bytes(), "a test").value();
  EXPECT_EQ(repack(repacking_of(w, first.raw(), second.raw(), fault), nullptr).message(), "");
  return w;
}

struct Case {
  int rows, tile, hidden, intermediate;
};
class Fp8Experts : public testing::TestWithParam<Case> {};

TEST_P(Fp8Experts, RoundToE4m3AndNothingElse) {
  const auto [rows, tile, hidden, intermediate] = GetParam();
  std::mt19937 rng(7);
  const Section gate(intermediate, hidden, rng), up(intermediate, hidden, rng),
      down(hidden, intermediate, rng);
  int fault = 0;
  const Matrix gate_up = matrix_of(gate, up, RowOrder::kPairs, 2 * intermediate, &fault);
  const Matrix second = matrix_of(down, down, RowOrder::kPlain, hidden, &fault);
  const LayerExperts e{.experts = kExperts,
                       .top_k = kTopK,
                       .hidden = hidden,
                       .intermediate = intermediate,
                       .fp8 = true,
                       .gate_up = &gate_up,
                       .down = &second,
                       .gate_bias = gate.bias.data(),
                       .up_bias = up.bias.data(),
                       .down_bias = down.bias.data()};
  std::normal_distribution<float> normal;
  std::vector<__half> x(static_cast<size_t>(rows) * hidden);
  for (__half& value : x) value = __float2half_rn(normal(rng) * kFactor);
  x[0] = __float2half_rn(32752), x[1] = __float2half_rn(-32752);  // the largest that a norm leaves
  const DeviceBuffer memory =
      DeviceBuffer::allocate(moe_scratch_bytes(kExperts, kTopK, hidden, intermediate, rows), "a test")
          .value();
  const MoeScratch scratch = moe_scratch(memory.as<void>(), kExperts, kTopK, hidden, intermediate, rows);
  // The second expert has hardly any rows.
  for (int row = 0; row < rows; ++row)
    scratch.ids[kTopK * row] = row % 9 == 4 ? 1 : 0, scratch.ids[kTopK * row + 1] = 2;

  const auto configs = configs_of(e);
  const auto config = std::ranges::find_if(configs, [wanted = tile](const MoeKernelConfig& c) {
    return c.kernel == MoeKernel::kGemmFp8 && c.tile == wanted;
  });
  ASSERT_NE(config, configs.end());
  const Route routing = routing_of(e, rows, tile, nullptr, scratch);
  ASSERT_EQ(list_work(routing, nullptr).message(), "");
  ASSERT_EQ(
      run_products(e, {.x = x.data(), .rows = rows, .factor = kFactor}, *config, routing, scratch, nullptr)
          .message(),
      "");

  RelativeError error, rounded;
  for (const int row : {0, rows / 2, rows - 1}) {
    for (int k = 0; k < kTopK; ++k) {
      const int expert = scratch.ids[kTopK * row + k];
      std::vector<double> exact(hidden), in(hidden), exact_h(intermediate), h(intermediate);
      for (int i = 0; i < hidden; ++i) {
        const double value = __half2float(x[static_cast<size_t>(row) * hidden + i]);
        exact[i] = value / kFactor, in[i] = e4m3(value, kFp8Scale) / kFactor;
      }
      const auto swiglu = [&](int i, const std::vector<double>& from) {
        const double g = std::min(gate.times(expert, i, from), 7.0);
        return g / (1 + std::exp(-1.702 * g)) * (std::clamp(up.times(expert, i, from), -7.0, 7.0) + 1);
      };
      for (int i = 0; i < intermediate; ++i)
        exact_h[i] = swiglu(i, exact), h[i] = e4m3(f16(swiglu(i, in)), kFp8HiddenScale);
      const float* const got = scratch.out + int64_t{scratch.permuted_rows[kTopK * row + k]} * hidden;
      for (int i = 0; i < hidden; ++i) {
        error.add(got[i], down.times(expert, i, h));
        rounded.add(got[i], down.times(expert, i, exact_h));
      }
    }
  }
  EXPECT_EQ(fault, 0);
  EXPECT_LT(error.value(), 2e-3);  // an h beside the middle of two neighbours
  EXPECT_LT(rounded.value(), kRoundedTolerance);
  EXPECT_GT(rounded.value(), 0.01);
}

// Whole tiles and one that is not; three times 64 columns, so that the last step is half a one; rows beyond
// the last four weight tiles.
INSTANTIATE_TEST_SUITE_P(Tiles, Fp8Experts,
                         testing::Values(Case{150, 64, 128, 192}, Case{150, 128, 192, 64},
                                         Case{9, 64, 64, 128}));

TEST(Fp8Path, IsRefusedBesideBatchInvariant) {
  for (const bool portable : {false, true}) {
    const auto made = create_cuda_backend(
        {.moe_path = MoePath::kFp8, .portable = portable, .batch_invariant = true, .tune = false});
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.status().message().find("--batch-invariant"), std::string::npos);
  }
}

}  // namespace
}  // namespace moesaic::cuda
