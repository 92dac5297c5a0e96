// The work list of choices that are there, by one CTA and by several, against sorting them by expert.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/kernels/common/route.h"

namespace moesaic::cuda {
namespace {

struct Listed {
  std::vector<int32_t> permuted_rows, source_rows;
  std::vector<WorkTile> work_tiles;
};
constexpr int kUntouched = -77;

// Expects `ids` to be grouped by expert in the order of rows, in work tiles of at most `tile`.
void expect_grouped(const Listed& listed, const std::vector<int32_t>& ids, int top_k, int experts, int tile) {
  int next = 0;
  size_t work_tile = 0;
  for (int expert = 0; expert < experts; ++expert) {
    const int first = next;
    for (size_t pair = 0; pair < ids.size(); ++pair) {
      if (ids[pair] != expert) continue;
      ASSERT_EQ(listed.permuted_rows[pair], next) << "pair " << pair;
      ASSERT_EQ(listed.source_rows[next], static_cast<int>(pair) / top_k) << "row " << next;
      ++next;
    }
    for (int at = first; at < next; at += tile, ++work_tile) {
      ASSERT_LT(work_tile, listed.work_tiles.size());
      const WorkTile& w = listed.work_tiles[work_tile];
      ASSERT_EQ((std::array{w.expert, w.first, w.count}),
                (std::array{expert, at, std::min(tile, next - at)}));
    }
  }
  EXPECT_EQ(work_tile, listed.work_tiles.size());
}

Listed list(const std::vector<int32_t>& ids, int top_k, int experts, int tile) {
  Listed out{std::vector<int32_t>(ids.size(), kUntouched), std::vector<int32_t>(ids.size(), kUntouched),
             std::vector<WorkTile>(ids.size() + experts)};
  std::vector<int32_t> choices = ids;
  int count = kUntouched;
  const Status status = list_work({.rows = static_cast<int>(ids.size()) / top_k,
                                   .experts = experts,
                                   .top_k = top_k,
                                   .tile = tile,
                                   .ids = choices.data(),
                                   .permuted_rows = out.permuted_rows.data(),
                                   .source_rows = out.source_rows.data(),
                                   .work_tiles = out.work_tiles.data(),
                                   .work_tile_count = &count},
                                  nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(choices, ids);
  EXPECT_GE(count, 0);
  out.work_tiles.resize(count);
  return out;
}

struct Shape {
  int rows, top_k, experts, tile;
};
class WorkListsOnHost : public testing::TestWithParam<Shape> {};

TEST_P(WorkListsOnHost, GroupsPairsByExpertInTheOrderOfRows) {
  const auto [rows, top_k, experts, tile] = GetParam();
  std::mt19937 random(rows);
  std::vector<int32_t> ids(static_cast<size_t>(rows) * top_k);
  // Few choose the last experts, some choose none.
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % (experts + 1) * (random() % 4) / 3) - 1;
  const Listed listed = list(ids, top_k, experts, tile);
  expect_grouped(listed, ids, top_k, experts, tile);
  for (size_t pair = 0; pair < ids.size(); ++pair) {
    if (ids[pair] >= 0) continue;
    ASSERT_EQ(listed.permuted_rows[pair], kUntouched);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, WorkListsOnHost,
                         testing::Values(Shape{1, 1, 1, 8}, Shape{5, 4, 32, 8}, Shape{256, 4, 32, 128},
                                         Shape{257, 4, 128, 64}, Shape{700, 3, 33, 16},
                                         Shape{1025, 1, 7, 128}, Shape{1300, 4, 1024, 32},
                                         Shape{4096, 4, 32, 128}));

// choose()'s last CTA makes the list, whichever that is.
TEST(WorkListOnHost, OfChosenExperts) {
  constexpr int kRows = 7, kHidden = 64, kExperts = 12, kTopK = 3, kTile = 8;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kHidden), weight(kHidden, 1.0F), router(kExperts * kHidden), bias(kExperts),
      logits(kRows * kExperts), weights(kRows * kTopK);
  for (std::vector<float>* values : {&x, &router}) {
    for (float& v : *values) v = normal(random);
  }
  std::vector<uint16_t> out(kRows * kHidden);
  std::vector<int32_t> choices(kRows * kTopK);
  Listed listed{std::vector<int32_t>(choices.size(), kUntouched),
                std::vector<int32_t>(choices.size(), kUntouched), std::vector<WorkTile>(choices.size())};
  int fault = 0, arrived = 0, count = kUntouched;
  const Norm norm{.x = x.data(),
                  .rows = kRows,
                  .hidden = kHidden,
                  .weight = weight.data(),
                  .out = out.data(),
                  .fault = &fault};
  const Router scores{.weight = router.data(),
                      .bias = bias.data(),
                      .logits = logits.data(),
                      .rows = kRows,
                      .hidden = kHidden,
                      .experts = kExperts};
  const Status status = choose(norm, scores,
                               {.logits = logits.data(),
                                .rows = kRows,
                                .experts = kExperts,
                                .top_k = kTopK,
                                .tile = kTile,
                                .ids = choices.data(),
                                .weights = weights.data(),
                                .permuted_rows = listed.permuted_rows.data(),
                                .source_rows = listed.source_rows.data(),
                                .work_tiles = listed.work_tiles.data(),
                                .work_tile_count = &count},
                               &arrived, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(arrived, 0);
  ASSERT_GE(count, 0);
  ASSERT_LE(count, kExperts);
  listed.work_tiles.resize(count);
  std::vector<int32_t> ids;
  for (int row = 0; row < kRows; ++row) {
    std::vector<int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    const float* const of_row = logits.data() + row * kExperts;
    std::ranges::sort(order, [&](int a, int b) { return of_row[a] > of_row[b]; });
    ids.insert(ids.end(), order.begin(), order.begin() + kTopK);
  }
  expect_grouped(listed, ids, kTopK, kExperts, kTile);
}

}  // namespace
}  // namespace moesaic::cuda
