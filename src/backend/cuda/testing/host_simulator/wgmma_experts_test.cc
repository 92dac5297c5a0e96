// Both products of the experts for many tokens, from the slabs that the loader packs, on the host: see
// thread_block.h.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <random>

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
void PrintTo(const Case& c, std::ostream* out) {
  *out << "tiles of " << c.tile << ", " << c.sms << " multiprocessors";
}
class WgmmaExperts : public testing::TestWithParam<Case> {};

TEST_P(WgmmaExperts, MultiplyBySlabs) {
  ASSERT_EQ(experts().fault, 0);
  const auto& [tile, work_tiles, blocks, sms] = GetParam();
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
  run_wgmma<SlabWeights<false>>(params_of(experts(sms).fc1, x.tiles, 2 * kHidden, 1.0f),
                                WgmmaSwiGlu{.out = static_cast<uint8_t*>(h.tiles.data),
                                            .peer_out = {static_cast<uint8_t*>(of_peer.tiles.data)},
                                            .peers = 1,
                                            .gate_bias = experts().bias[kGatePart].data(),
                                            .up_bias = experts().bias[kUpPart].data()},
                                blocks);
  EXPECT_EQ(std::memcmp(h.values.data(), of_peer.values.data(), h.values.size() * sizeof(__half)), 0);
  std::vector<float> y(static_cast<size_t>(tokens) * kHidden);
  run_wgmma<SlabWeights<true>>(
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

// Full tiles, which keep products running from stage to stage, and every kind of width; an expert without
// tokens.
INSTANTIATE_TEST_SUITE_P(
    Tiles, WgmmaExperts,
    testing::Values(Case{32, {{0, 0, 30, 0}, {2, 30, 8, 32}}, 7}, Case{32, {{1, 0, 3, 0}}, 5, 114},
                    Case{32, {{1, 0, 3, 0}}, 5, 78}, Case{32, {{1, 0, 3, 0}}, 5, 17},
                    Case{64, {{0, 0, 61, 0}, {1, 61, 40, 64}}, 132},
                    Case{128, {{0, 0, 128, 0}, {0, 128, 97, 128}, {2, 225, 9, 240}}, 20}),
    [](const auto& test) { return fmt::format("{}_on_{}", test.param.tile, test.param.sms); });

}  // namespace
}  // namespace moesaic::cuda::sm90
