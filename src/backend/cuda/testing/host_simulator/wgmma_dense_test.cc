// Dense products of many tokens on the host: matrices of every kind that go through wgmma, in matrix.h's
// order, with rows that fill no tile.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <random>

#include "backend/cuda/testing/host_simulator/run_wgmma.h"
#include "base/relative_error_test.h"

namespace moesaic::cuda::sm90 {
namespace {

constexpr int kRows = 217, kWeightTiles = (kRows + kWeightTileRows - 1) / kWeightTileRows,
              kStages = kFewestStages;
constexpr int kCols = kStages * kWgmmaStep, kColBlocks = kCols / kBlock, kTokens = 70;

// Where row r of a weight tile stands in it: matrix.h's m, h and g.
struct Spot {
  int m, h, g;
  explicit Spot(int r) : m(r / 16), h(r / 8 % 2), g(r % 8) {}
};

struct Packed {
  std::vector<uint8_t> data, scales, tops;
  std::vector<double> values;  // [kRows, kCols]
};

// 16 bits a weight, at random.
template <class Element>
Packed pack_plain(std::mt19937& rng) {
  std::normal_distribution<float> normal;
  Packed p{.data = std::vector<uint8_t>(size_t{kWeightTiles} * kWeightTileRows * kCols * 2),
           .values = std::vector<double>(size_t{kRows} * kCols)};
  for (int row = 0; row < kRows; ++row) {
    const Spot at(row % kWeightTileRows);
    for (int col = 0; col < kCols; ++col) {
      const Element weight(normal(rng));
      p.values[int64_t{row} * kCols + col] = static_cast<double>(static_cast<float>(weight));
      const int c = col % 32 / 8, j = col % 8 / 4, pair = col % 4 / 2;
      const int64_t block = int64_t{row / kWeightTileRows} * kColBlocks + col / 32;
      std::memcpy(&p.data[block * 2048 + (2 * at.m + j) * 512 + (4 * at.g + c) * 16 + (2 * pair + at.h) * 4 +
                          col % 2 * 2],
                  &weight, 2);
    }
  }
  return p;
}

// A byte a weight. draw_code, draw_scale: a code, a Scale, and what it is worth.
template <class Scale, class DrawCode, class DrawScale>
Packed pack_bytes(const DrawCode& draw_code, const DrawScale& draw_scale) {
  Packed p{
      .data = std::vector<uint8_t>(size_t{kWeightTiles} * kWeightTileRows * kCols),
      .scales = std::vector<uint8_t>(size_t{kWeightTiles} * kWeightTileRows * kColBlocks * sizeof(Scale)),
      .tops = std::vector<uint8_t>(size_t{kWeightTiles} * kWeightTileRows, 1),
      .values = std::vector<double>(size_t{kRows} * kCols)};
  for (int row = 0; row < kRows; ++row) {
    const Spot at(row % kWeightTileRows);
    for (int b = 0; b < kColBlocks; ++b) {
      const int64_t block = int64_t{row / kWeightTileRows} * kColBlocks + b;
      const auto [scale, worth] = draw_scale();
      const int in_block = 4 * at.g + 2 * at.m + at.h;
      std::memcpy(&p.scales[(block * kWeightTileRows + in_block) * sizeof(Scale)], &scale, sizeof(Scale));
      uint8_t& top = p.tops[int64_t{row / kWeightTileRows} * kWeightTileRows + in_block];
      if constexpr (sizeof(Scale) == 1) top = std::max(top, scale);
      for (int i = 0; i < 32; ++i) {
        const auto [code, value] = draw_code();
        p.data[block * 1024 + at.m * 512 + (4 * at.g + i / 8) * 16 + i % 8 / 2 * 4 + 2 * at.h + i % 2] = code;
        p.values[int64_t{row} * kCols + b * 32 + i] = value * worth;
      }
    }
  }
  return p;
}

// split: CTAs that share a tile, of which each has one; 1: one CTA takes all tiles.
struct Case {
  int tile, split;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.tile << " tokens, split " << c.split; }

template <class Weights, class Element>
void multiply(const Packed& w, const Case& c, double tolerance) {
  const auto [tile, split] = c;
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<Element> x(size_t{kTokens} * kCols), placed(size_t{kTokens + 2 * 64} * kCols);
  for (int token = 0; token < kTokens; ++token) {
    for (int col = 0; col < kCols; ++col) {
      x[int64_t{token} * kCols + col] = Element(normal(rng));
      const int in_tile = token % tile;
      placed[int64_t{token - in_tile} * kCols + place_in_tile(tile, in_tile, col)] =
          x[int64_t{token} * kCols + col];
    }
  }
  std::vector<float> y(size_t{kTokens} * kRows);
  const WgmmaParams p{.weights = w.data.data(),
                      .scales = w.scales.data(),
                      .tops = w.tops.data(),
                      .x = {.data = placed.data(), .cols = kCols, .tokens = kTokens, .tile = tile},
                      .row_tiles = (kRows + kTileRows - 1) / kTileRows,
                      .weight_tiles = kWeightTiles,
                      .stages = kStages,
                      .split = split,
                      .factor = 1.0f};
  const int tiles = p.row_tiles * ((kTokens + tile - 1) / tile);
  run_wgmma<Weights>(p, Store{.out = y.data(), .stride = kRows, .rows = kRows},
                     split > 1 ? tiles * split : 1);
  RelativeError error;
  for (int token = 0; token < kTokens; ++token) {
    for (int row = 0; row < kRows; ++row) {
      double want = 0;
      for (int col = 0; col < kCols; ++col)
        want += w.values[int64_t{row} * kCols + col] *
                static_cast<double>(static_cast<float>(x[int64_t{token} * kCols + col]));
      error.add(y[int64_t{token} * kRows + row], want);
    }
  }
  EXPECT_LT(error.value(), tolerance);
}

class WgmmaDense : public testing::TestWithParam<Case> {
 protected:
  std::mt19937 rng_{3};
};

TEST_P(WgmmaDense, MultiplyByPlainWeights) {
  multiply<PlainWeights<true>, __nv_bfloat16>(pack_plain<__nv_bfloat16>(rng_), GetParam(), 1e-6);
  multiply<PlainWeights<false>, __half>(pack_plain<__half>(rng_), GetParam(), 1e-6);
}
TEST_P(WgmmaDense, MultiplyByQ8) {
  const Packed w = pack_bytes<__half>(
      [&] {
        const int value = static_cast<int>(rng_() % 256) - 128;
        return std::pair(static_cast<uint8_t>(value + 128), static_cast<double>(value));
      },
      [&] {
        const __half scale(static_cast<float>(1 + rng_() % 99) * 1e-5f);
        return std::pair(scale, static_cast<double>(static_cast<float>(scale)));
      });
  multiply<ByteWeights<Q8Codes>, __half>(w, GetParam(), 3e-4);  // rounded to F16
}
TEST_P(WgmmaDense, MultiplyByMxfp8) {
  const Packed w = pack_bytes<uint8_t>(
      [&] {
        uint8_t code = static_cast<uint8_t>(rng_());
        if ((code & 0x7F) == 0x7F) code = 0;  // NaN
        return std::pair(code, static_cast<double>(mx::decode_e4m3(code)));
      },
      [&] {
        const auto scale = static_cast<uint8_t>(105 + rng_() % 12);
        return std::pair(scale, static_cast<double>(mx::decode_e8m0(scale)));
      });
  multiply<ByteWeights<Mxfp8Codes>, __half>(w, GetParam(), 1e-6);
}
// A split that gives parts of different lengths, one that leaves a CTA without a stage or without tokens.
INSTANTIATE_TEST_SUITE_P(ActivationTiles, WgmmaDense,
                         testing::Values(Case{32, 1}, Case{64, 1}, Case{32, 2}, Case{64, 4}, Case{128, 8},
                                         Case{192, 1}),
                         [](const auto& test) {
                           return fmt::format("{}_split_{}", test.param.tile, test.param.split);
                         });

// Epilogues against what they do with one pair of sums at a time. Weights in any order: Store says what the
// sums are.
struct Heads {
  int head_dim, heads, kv_heads;
  bool fp8;
  int tile;
  int rows() const { return (heads + 2 * kv_heads) * head_dim; }
};
void PrintTo(const Heads& h, std::ostream* out) {
  *out << h.heads << '+' << h.kv_heads << " heads of " << h.head_dim << (h.fp8 ? ", FP8, tile " : ", tile ")
       << h.tile;
}

class WgmmaEpilogues : public testing::TestWithParam<Heads> {
 protected:
  void SetUp() override {
    for (auto* values : {&weights_, &x_})
      for (__nv_bfloat16& value : *values) value = __nv_bfloat16(normal_(rng_));
    for (auto* values : {&bias_, &before_})
      for (float& value : *values) value = normal_(rng_);
  }
  WgmmaParams params() {
    return {.weights = reinterpret_cast<const uint8_t*>(weights_.data()),
            .x = {.data = x_.data(), .cols = kCols, .tokens = kTokens, .tile = at_.tile},
            .row_tiles = (rows_ + kTileRows - 1) / kTileRows,
            .weight_tiles = rows_ / kWeightTileRows,
            .stages = kStages,
            .split = 1,
            .factor = 1.0f};
  }
  // rows: as many are stored.
  std::vector<float> stored(const Store& store) {
    std::vector<float> y = before_;
    Store out = store;
    out.out = y.data(), out.stride = store.rows;
    run_wgmma<PlainWeights<true>>(params(), out, 1);
    return y;
  }

  const Heads at_ = GetParam();
  const int rows_ = at_.rows();
  std::mt19937 rng_{5};
  std::normal_distribution<float> normal_;
  std::vector<__nv_bfloat16> weights_ = std::vector<__nv_bfloat16>(size_t(rows_) * kCols),
                             x_ = std::vector<__nv_bfloat16>(size_t{2 * 192} * kCols);
  std::vector<float> bias_ = std::vector<float>(rows_), before_ = std::vector<float>(size_t(rows_) * kTokens);
};

TEST_P(WgmmaEpilogues, AddToWhatStandsThere) {
  for (const int rows : {rows_, rows_ - 3}) {  // whole chunks of 16 bytes, and rows that begin anywhere
    const std::vector<float> sums = stored({.rows = rows});
    const std::vector<float> y = stored({.bias = bias_.data(), .rows = rows, .add = true});
    for (int i = 0; i < rows * kTokens; ++i) ASSERT_EQ(y[i], before_[i] + (sums[i] + bias_[i % rows])) << i;
    for (size_t i = size_t(rows) * kTokens; i < y.size(); ++i) ASSERT_EQ(y[i], before_[i]) << i;
  }
}

TEST_P(WgmmaEpilogues, PutQueriesKeysAndValuesWhereTheyBelong) {
  constexpr int kPages = 4;
  struct Placed {
    std::vector<__nv_bfloat16> q;
    std::vector<uint16_t> k, v;
  };
  const size_t page = size_t(at_.kv_heads) * kPageTokens * at_.head_dim;
  Placed got{std::vector<__nv_bfloat16>(size_t(kTokens) * at_.heads * at_.head_dim),
             std::vector<uint16_t>(kPages * page), std::vector<uint16_t>(kPages * page)};
  Placed want = got;
  std::vector<int32_t> slots(kPages * kPageTokens);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), rng_);
  std::vector<float2> rotation(size_t(kTokens) * at_.head_dim / 2);
  for (float2& r : rotation) r = {normal_(rng_), normal_(rng_)};
  const auto epilogue = [&](Placed& placed) {
    return Qkv{.bias = bias_.data(),
               .head_dim = at_.head_dim,
               .heads = at_.heads,
               .kv_heads = at_.kv_heads,
               .rotation = rotation.data(),
               .q = placed.q.data(),
               .k = placed.k.data(),
               .v = placed.v.data(),
               .fp8 = at_.fp8,
               .slots = slots.data()};
  };
  run_wgmma<PlainWeights<true>>(params(), epilogue(got), 1);
  const std::vector<float> sums = stored({.rows = rows_});
  for (int token = 0; token < kTokens; ++token) {
    for (int row = 0; row < rows_; row += row % 8 == 7 ? 9 : 1) {
      const int weight_tile = row / kWeightTileRows, pair = row % kWeightTileRows / 16 * 8 + row % 8;
      const float* sum = &sums[size_t(token) * rows_ + row];
      finish(epilogue(want), weight_tile, pair, token, 0, sum[0], sum[8]);
    }
  }
  EXPECT_EQ(std::memcmp(got.q.data(), want.q.data(), got.q.size() * 2), 0);
  EXPECT_EQ(got.k, want.k);
  EXPECT_EQ(got.v, want.v);
}
// Warpgroups of queries alone, of keys, of values, and of several kinds; one whose second weight tile is not
// there; parts that the tokens do not fill.
INSTANTIATE_TEST_SUITE_P(Heads, WgmmaEpilogues,
                         testing::Values(Heads{64, 5, 2, false, 64}, Heads{64, 5, 2, true, 128},
                                         Heads{64, 5, 2, false, 192}, Heads{32, 3, 1, false, 64},
                                         Heads{32, 2, 2, true, 32}, Heads{128, 2, 1, false, 128},
                                         Heads{128, 1, 1, true, 192}),
                         [](const auto& test) {
                           const Heads& h = test.param;
                           return fmt::format("{}_{}_of_{}{}_tile_{}", h.heads, h.kv_heads, h.head_dim,
                                              h.fp8 ? "_fp8" : "", h.tile);
                         });

}  // namespace
}  // namespace moesaic::cuda::sm90
