// The experts' products with activations in E4M3 (kernels/common/gemm_fp8.h) in the simulator, against sums
// in double precision.
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/common/gave_up.h"
#include "backend/cuda/kernels/common/gemm_fp8.h"
#include "backend/cuda/kernels/common/repack.h"
#include "backend/cuda/ops/experts.h"
#include "base/error.h"
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
  // Some of its rows, of every expert.
  Raw raw(Range of) const {
    return {.format = Format::kMxfp4,
            .rows = of.count,
            .row_stride = cols / 2,
            .scale_stride = cols / kBlock,
            .data = codes.data() + of.first * cols / 2,
            .scales = scales.data() + of.first * cols / kBlock,
            .expert_stride = int64_t{rows} * cols / 2,
            .expert_scale_stride = int64_t{rows} * cols / kBlock};
  }
  std::vector<float> biases(Range of) const {
    std::vector<float> some;
    for (auto at = bias.begin() + of.first; some.size() < static_cast<size_t>(kExperts * of.count);
         at += rows)
      some.insert(some.end(), at, at + of.count);
    return some;
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

Matrix matrix_of(const Section& first, const Section& second, RowOrder order, Range of, int* fault) {
  Matrix w;
  w.kind = Kind::kMxfp4, w.order = order, w.cols = first.cols, w.experts = kExperts;
  w.rows = order == RowOrder::kPairs ? 2 * of.count : of.count;
  w.weight_tiles = weight_tiles_of(w.rows);
  const int64_t tiles = kExperts * w.weight_tiles;
  w.data = DeviceBuffer::allocate(tiles * w.weight_tile_bytes(), "a test").value();
  w.scales = DeviceBuffer::allocate(tiles * w.weight_tile_scale_bytes(), "a test").value();
  EXPECT_EQ(repack(repacking_of(w, first.raw(of), second.raw(of), fault), nullptr).message(), "");
  return w;
}

// A rank's part of a layer, or all of it.
struct Layer {
  int rows, hidden, intermediate, fault = 0;
  RankShare share;
  Section gate, up, down;
  Range columns = share.rows(intermediate), out = share.rows(hidden);
  Matrix gate_up = matrix_of(gate, up, RowOrder::kPairs, columns, &fault),
         second = matrix_of(down, down, RowOrder::kPlain, out, &fault);
  std::vector<float> gate_bias = gate.biases(columns), up_bias = up.biases(columns),
                     down_bias = down.biases(out);
  LayerExperts experts{.experts = kExperts,
                       .top_k = kTopK,
                       .hidden = hidden,
                       .intermediate = intermediate,
                       .fp8 = true,
                       .gate_up = &gate_up,
                       .down = &second,
                       .gate_bias = gate_bias.data(),
                       .up_bias = up_bias.data(),
                       .down_bias = down_bias.data(),
                       .h_columns = columns,
                       .out_rows = out};
  std::vector<__half> x = std::vector<__half>(static_cast<size_t>(rows) * hidden);
  DeviceBuffer memory =
      DeviceBuffer::allocate(moe_scratch_bytes(kExperts, kTopK, hidden, intermediate, rows), "a test")
          .value();
  MoeScratch scratch = moe_scratch(memory.as<void>(), kExperts, kTopK, hidden, intermediate, rows);

  Layer(int all_rows, int h, int i, std::mt19937& rng, const RankShare& s = {})
      : rows(all_rows),
        hidden(h),
        intermediate(i),
        share(s),
        gate(i, h, rng),
        up(i, h, rng),
        down(h, i, rng) {
    std::normal_distribution<float> normal;
    for (__half& value : x) value = __float2half_rn(normal(rng) * kFactor);
    x[0] = __float2half_rn(32752), x[1] = __float2half_rn(-32752);  // the largest that a norm leaves
    // The second expert has hardly any rows.
    for (int row = 0; row < rows; ++row)
      scratch.ids[kTopK * row] = row % 9 == 4 ? 1 : 0, scratch.ids[kTopK * row + 1] = 2;
  }
  Layer(const Layer&) = delete;

  Status run(int tile) {
    const auto configs = configs_of(experts);
    const auto config = std::ranges::find_if(configs, [tile](const MoeKernelConfig& c) {
      return c.kernel == MoeKernel::kGemmFp8 && c.tile == tile;
    });
    if (config == configs.end()) return invalid("no tile of {}", tile);
    const Route routing = routing_of(experts, rows, tile, nullptr, scratch);
    RETURN_IF_ERROR(list_work(routing, nullptr));
    return run_products(experts, {.x = x.data(), .rows = rows, .factor = kFactor}, *config, routing, scratch,
                        nullptr);
  }
  // The experts' outputs of a row's choice.
  const float* out_of(int row, int choice) const {
    return scratch.out + int64_t{scratch.permuted_rows[kTopK * row + choice]} * hidden;
  }
};

struct Case {
  int rows, tile, hidden, intermediate;
};
class Fp8Experts : public testing::TestWithParam<Case> {};

TEST_P(Fp8Experts, RoundToE4m3AndNothingElse) {
  const auto [rows, tile, hidden, intermediate] = GetParam();
  std::mt19937 rng(7);
  Layer layer(rows, hidden, intermediate, rng);
  ASSERT_EQ(layer.run(tile).message(), "");
  const Section &gate = layer.gate, &up = layer.up, &down = layer.down;

  RelativeError error, rounded;
  for (const int row : {0, rows / 2, rows - 1}) {
    for (int k = 0; k < kTopK; ++k) {
      const int expert = layer.scratch.ids[kTopK * row + k];
      std::vector<double> exact(hidden), in(hidden), exact_h(intermediate), h(intermediate);
      for (int i = 0; i < hidden; ++i) {
        const double value = __half2float(layer.x[static_cast<size_t>(row) * hidden + i]);
        exact[i] = value / kFactor, in[i] = e4m3(value, kFp8Scale) / kFactor;
      }
      const auto swiglu = [&](int i, const std::vector<double>& from) {
        const double g = std::min(gate.times(expert, i, from), 7.0);
        return g / (1 + std::exp(-1.702 * g)) * (std::clamp(up.times(expert, i, from), -7.0, 7.0) + 1);
      };
      for (int i = 0; i < intermediate; ++i)
        exact_h[i] = swiglu(i, exact), h[i] = e4m3(f16(swiglu(i, in)), kFp8HiddenScale);
      const float* const got = layer.out_of(row, k);
      for (int i = 0; i < hidden; ++i) {
        error.add(got[i], down.times(expert, i, h));
        rounded.add(got[i], down.times(expert, i, exact_h));
      }
    }
  }
  EXPECT_EQ(layer.fault, 0);
  EXPECT_LT(error.value(), 2e-3);  // an h beside the middle of two neighbours
  EXPECT_LT(rounded.value(), kRoundedTolerance);
  EXPECT_GT(rounded.value(), 0.01);
}

// Whole tiles and one that is not; three times 64 columns, so that the last step is half a one; rows beyond
// the last four weight tiles.
INSTANTIATE_TEST_SUITE_P(Tiles, Fp8Experts,
                         testing::Values(Case{150, 64, 128, 192}, Case{150, 128, 192, 64},
                                         Case{9, 64, 64, 128}));

// The ranks run one after the other, while the others' words lie in their inboxes: the first one has to give
// up once, behind its own words.
TEST(Fp8ExpertsOfRanks, HaveTheBitsOfOneRank) {
  constexpr int kRanks = 2, kRows = 9, kTile = 64, kHidden = 128, kIntermediate = 192;
  std::mt19937 one_rng(7);
  Layer whole(kRows, kHidden, kIntermediate, one_rng);
  ASSERT_EQ(whole.run(kTile).message(), "");

  const auto meeting = std::make_shared<Exchange>(kRanks, 60);
  std::deque<Layer> layers;
  std::array<RankExchange, kRanks> exchanges;
  std::array<int, kRanks> faults{}, epochs{};
  std::array<Status, kRanks> opened;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::mt19937 rng(7);
    layers.emplace_back(kRows, kHidden, kIntermediate, rng, RankShare{rank, kRanks}).experts.ranks =
        &exchanges[rank];
  }
  const auto open = [&](int rank) -> Status {
    MoeScratch& scratch = layers[rank].scratch;
    RETURN_IF_ERROR(exchanges[rank].open({{rank, kRanks}, meeting}, 0, GpuPart(), &faults[rank]));
    ASSIGN_OR_RETURN(scratch.hidden_of, exchanges[rank].of_ranks(scratch.hidden));
    ASSIGN_OR_RETURN(epochs[rank], exchanges[rank].begin_step(&epochs[rank], nullptr));
    return {};
  };
  std::thread other([&] { opened[1] = open(1); });
  opened[0] = open(0);
  other.join();
  for (const Status& status : opened) ASSERT_EQ(status.message(), "");

  EXPECT_EQ(layers[0].run(kTile).message(), "");
  EXPECT_EQ(std::exchange(faults[0], 0), kRankAway);
  ASSERT_EQ(layers[1].run(kTile).message(), "");
  ASSERT_TRUE(exchanges[0].begin_step(&epochs[0], nullptr).ok());  // again in the first step's epoch
  ASSERT_EQ(layers[0].run(kTile).message(), "");
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(faults[rank], 0);
    const Range out = layers[rank].out;
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < kTopK; ++k)
        EXPECT_TRUE(std::equal(layers[rank].out_of(row, k) + out.first,
                               layers[rank].out_of(row, k) + out.first + out.count,
                               whole.out_of(row, k) + out.first))
            << rank << " " << row << " " << k;
    }
  }
}

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
