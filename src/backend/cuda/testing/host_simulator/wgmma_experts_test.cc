// Both products of the experts for many tokens, from the slabs that the loader packs, on the host: see
// thread_block.h.
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <random>

#include "backend/cuda/kernels/sm90/arrange.cuh"
#include "backend/cuda/testing/host_simulator/experts.h"
#include "backend/cuda/testing/host_simulator/run_wgmma.h"

namespace moesaic::cuda::sm90 {
namespace {

// Activations as gemm_wgmma.h's ActivationTiles has them.
struct Placed {
  std::vector<__half> values;
  ActivationTiles tiles;
  Placed(const std::vector<WorkTile>& work_tiles, const int* count, int tile, int sms)
      : values(static_cast<size_t>(work_tiles.back().start + tile_width(work_tiles.back().count)) * kHidden,
               __half(__half_raw{.x = 0x7E00})),  // NaN
        tiles{.data = values.data(),
              .cols = kHidden,
              .work_tiles = work_tiles.data(),
              .work_tile_count = count,
              .most_work_tiles = *count,
              .tile = tile,
              .layout = slab_layout(sms)} {}
  __half& at(const WorkTile& work_tile, int token, int column) {
    return values[int64_t{work_tile.start} * kHidden +
                  place_in_tile(tile_width(work_tile.count), token, column)];
  }
};

WgmmaParams params_of(const std::vector<uint8_t>& weights, const ActivationTiles& x, int rows, float factor) {
  return {.weights = weights.data(),
          .x = x,
          .row_tiles = rows / kTileRows,
          .weight_tiles = rows / kWeightTileRows,
          .stages = kBlocks / kBlocksPerWarp,
          .split = 1,
          .factor = factor};
}

struct Case {
  int tile;
  std::vector<WorkTile> work_tiles;
  unsigned blocks;
  int sms = kFullSms;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.tile << "_on_" << c.sms; }

template <template <bool kDown> class Weights>
void multiply_by_slabs(const Case& c) {
  ASSERT_EQ(experts().fault, 0);
  const auto& [tile, work_tiles, blocks, sms] = c;
  const int count = static_cast<int>(work_tiles.size()),
            tokens = work_tiles.back().first + work_tiles.back().count;
  Placed x(work_tiles, &count, tile, sms), h(work_tiles, &count, tile, sms),
      of_peer(work_tiles, &count, tile, sms);
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  for (const WorkTile& work_tile : work_tiles) {
    for (int token = 0; token < work_tile.count; ++token) {
      for (int column = 0; column < kHidden; ++column)
        x.at(work_tile, token, column) = __float2half_rn(normal(rng));
    }
  }
  run_wgmma<Weights<false>>(params_of(experts(sms).fc1, x.tiles, 2 * kHidden, 1.0f),
                            WgmmaSwiGlu{.out = static_cast<uint8_t*>(h.tiles.data),
                                        .peer_out = {static_cast<uint8_t*>(of_peer.tiles.data)},
                                        .peers = 1,
                                        .gate_bias = experts().bias[kGatePart].data(),
                                        .up_bias = experts().bias[kUpPart].data()},
                            blocks);
  EXPECT_EQ(std::memcmp(h.values.data(), of_peer.values.data(), h.values.size() * sizeof(__half)), 0);
  std::vector<float> y(static_cast<size_t>(tokens) * kHidden);
  run_wgmma<Weights<true>>(
      params_of(experts(sms).fc2, h.tiles, kHidden, 1.0f / kHScale),
      Store{.out = y.data(), .stride = kHidden, .bias = experts().bias[kDownPart].data(), .rows = kHidden},
      blocks);
  Errors errors;
  for (const WorkTile& work_tile : work_tiles) {
    for (const int token : {0, work_tile.count / 2, work_tile.count - 1})
      errors.add(
          work_tile.expert, [&](int i) { return x.at(work_tile, token, i); },
          [&](int i) { return h.at(work_tile, token, i); },
          &y[static_cast<size_t>(work_tile.first + token) * kHidden]);
  }
  errors.check();
}

class WgmmaExperts : public testing::TestWithParam<Case> {};
TEST_P(WgmmaExperts, MultiplyBySlabs) { multiply_by_slabs<SlabWeights>(GetParam()); }

class MmaExperts : public testing::TestWithParam<Case> {};
TEST_P(MmaExperts, MultiplyBySlabs) { multiply_by_slabs<MmaSlabWeights>(GetParam()); }

// Full tiles, which keep products running from stage to stage, and every kind of width; an expert without
// tokens.
INSTANTIATE_TEST_SUITE_P(
    Tiles, WgmmaExperts,
    testing::Values(Case{32, {{0, 0, 30, 0}, {2, 30, 8, 32}}, 7}, Case{32, {{1, 0, 3, 0}}, 5, 114},
                    Case{32, {{1, 0, 3, 0}}, 5, 78}, Case{32, {{1, 0, 3, 0}}, 5, 17},
                    Case{64, {{0, 0, 61, 0}, {1, 61, 40, 64}}, 132},
                    Case{128, {{0, 0, 128, 0}, {0, 128, 97, 128}, {2, 225, 9, 240}}, 20}),
    testing::PrintToStringParamName());

INSTANTIATE_TEST_SUITE_P(
    Tiles, MmaExperts,
    testing::Values(Case{
        64, {{0, 0, 33, 0}, {1, 33, 3, 48}, {2, 36, 17, 56}, {3, 53, 12, 88}, {4, 65, 61, 104}}, 9}),
    testing::PrintToStringParamName());

// The same in FP8, from rows that arrange() gathers: every row of x stands at another place.
struct PlacedFp8 {
  std::vector<uint8_t> codes;
  ActivationTiles tiles;
  PlacedFp8(const std::vector<WorkTile>& work_tiles, const int* count, int tile)
      : codes(static_cast<size_t>(work_tiles.back().start + tile_width(work_tiles.back().count)) * kHidden,
              0x7F),  // NaN
        tiles{.data = codes.data(),
              .cols = kHidden,
              .work_tiles = work_tiles.data(),
              .work_tile_count = count,
              .most_work_tiles = *count,
              .tile = tile,
              .fp8 = true,
              .layout = slab_layout(kFullSms)} {}
  // A token's values, as they were before kFp8Scale.
  std::vector<float> row(const WorkTile& at, int token) const {
    std::vector<float> values(kHidden);
    for (int i = 0; i < kHidden; ++i) {
      const int in_block = i % 32, chunk = i / 32 % 2 * 2 + in_block % 8 / 4;
      const int64_t place =
          (int64_t{i / 64} * tile_width(at.count) + token) * 64 + fp8_place(chunk, token) * 16;
      values[i] =
          mx::decode_e4m3(codes[int64_t{at.start} * kHidden + place + in_block / 8 * 4 + in_block % 4]) /
          kFp8Scale;
    }
    return values;
  }
};
float e4m3(float x) { return mx::decode_e4m3(mx::encode_e4m3(x)); }

class Fp8Experts : public testing::TestWithParam<Case> {};

TEST_P(Fp8Experts, AreRoundedToE4m3AndMultipliedBySlabs) {
  constexpr float kFactor = 512;  // F16 rows have it
  const auto& [tile, work_tiles, blocks, sms] = GetParam();
  const int count = static_cast<int>(work_tiles.size()),
            tokens = work_tiles.back().first + work_tiles.back().count;
  PlacedFp8 x(work_tiles, &count, tile), h(work_tiles, &count, tile), of_peer(work_tiles, &count, tile);
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<__half> rows(static_cast<size_t>(tokens) * kHidden);
  for (__half& value : rows) value = __float2half_rn(normal(rng) * kFactor);
  rows[5] = __float2half_rn(32752), rows[6] = __float2half_rn(-32752);  // the largest that a norm leaves
  std::vector<int32_t> source(tokens);
  for (int i = 0; i < tokens; ++i) source[i] = tokens - 1 - i;
  ASSERT_TRUE(on_host::run_in_turn(
      dim3((tile + kArrangeWarps - 1) / kArrangeWarps, count), 32 * kArrangeWarps, {},
      [&] { arrange_fp8_kernel(reinterpret_cast<const uint2*>(rows.data()), source.data(), x.tiles); }));
  run_wgmma<Fp8SlabWeights<false>>(params_of(experts().fc1, x.tiles, 2 * kHidden, 1 / kFactor / kFp8Scale),
                                   WgmmaSwiGlu{.out = h.codes.data(),
                                               .peer_out = {of_peer.codes.data()},
                                               .peers = 1,
                                               .gate_bias = experts().bias[kGatePart].data(),
                                               .up_bias = experts().bias[kUpPart].data()},
                                   blocks);
  EXPECT_EQ(h.codes, of_peer.codes);
  std::vector<float> y(static_cast<size_t>(tokens) * kHidden);
  run_wgmma<Fp8SlabWeights<true>>(
      params_of(experts().fc2, h.tiles, kHidden, 1.0f / kHScale / kFp8Scale),
      Store{.out = y.data(), .stride = kHidden, .bias = experts().bias[kDownPart].data(), .rows = kHidden},
      blocks);
  RelativeError fc1, fc2;
  for (const WorkTile& at : work_tiles) {
    for (const int token : {0, at.count / 2, at.count - 1}) {
      std::vector<float> in = x.row(at, token), hidden = h.row(at, token);
      const __half* row = &rows[static_cast<size_t>(source[at.first + token]) * kHidden];
      for (int i = 0; i < kHidden; ++i) {
        ASSERT_EQ(in[i], e4m3(__half2float(row[i]) * kFp8Scale) / kFp8Scale) << i;
        in[i] /= kFactor, hidden[i] /= kHScale;
      }
      const std::vector<float> want_h = experts().hidden(at.expert, in);
      const std::vector<float> want = experts().times(kDownPart, at.expert, hidden);
      for (int i = 0; i < kHidden; ++i) {
        constexpr float kOfHidden = kHScale * kFp8Scale;
        fc1.add(hidden[i], e4m3(want_h[i] * kOfHidden) / kOfHidden);  // but for ties within F32's rounding
        fc2.add(y[static_cast<size_t>(at.first + token) * kHidden + i], want[i]);
      }
    }
  }
  EXPECT_LT(fc1.value(), 1e-3);
  EXPECT_LT(fc2.value(), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Tiles, Fp8Experts,
    testing::Values(Case{32, {{0, 0, 30, 0}, {2, 30, 8, 32}}, 7},
                    Case{64, {{0, 0, 61, 0}, {1, 61, 40, 64}}, 132},
                    Case{128, {{0, 0, 128, 0}, {0, 128, 97, 128}, {2, 225, 9, 240}}, 20},
                    Case{192, {{0, 0, 192, 0}, {0, 192, 139, 192}, {2, 331, 164, 336}}, 20}),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace moesaic::cuda::sm90
