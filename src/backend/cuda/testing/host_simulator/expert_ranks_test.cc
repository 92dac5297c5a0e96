// A rank chooses the experts' kernel by its own part of the work; and the numbers of its exchanges.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>

#include "backend/cuda/ops/experts.h"

namespace moesaic::cuda {
namespace {

constexpr int kHidden = 2880, kExperts = 128;

Matrix matrix_of(int64_t rows) {
  Matrix m;
  m.kind = Kind::kMxfp4, m.rows = rows, m.cols = kHidden, m.experts = kExperts;
  m.weight_tiles = weight_tiles_of(rows);
  return m;
}

// The 120b's experts, of which a rank has 1 / ranks.
MoeShape shape_of_rank(int ranks, RankExchange* exchange, int tokens) {
  const Matrix gate_up = matrix_of(2 * kHidden / ranks), down = matrix_of(kHidden / ranks);
  LayerExperts e{.experts = kExperts, .top_k = 4, .hidden = kHidden, .intermediate = kHidden, .slabs = true};
  e.gate_up = &gate_up, e.down = &down, e.ranks = exchange;
  e.h_columns.count = e.out_rows.count = kHidden / ranks;
  return shape_of(e, tokens);
}

TEST(ExpertRanks, ChooseByTheirOwnPart) {
  const auto exchange = std::make_shared<Exchange>(2, 30.0);
  std::array<MoeShape, 2> shapes;
  {
    std::array<std::jthread, 2> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks[rank] = std::jthread([&, rank] {
        int fault = 0;
        RankExchange own;
        EXPECT_EQ(own.open({{rank, 2}, exchange}, 0, GpuPart(), &fault).message(), "");
        shapes[rank] = shape_of_rank(2, &own, 256);
        EXPECT_EQ(own.meet().message(), "");
      });
  }
  for (const MoeShape& shape : shapes) {
    const MoeShape whole = shape_of_rank(1, nullptr, 256);
    EXPECT_DOUBLE_EQ(shape.expert_bytes, whole.expert_bytes / 2);
    const std::span<const MoeKernelConfig> configs = sm90_configs(true);
    // Half of the bytes and half of the operations: the kernel is the same.
    EXPECT_EQ(choose_config(shape, configs)->name, choose_config(whole, configs)->name);
    EXPECT_LT(rank_configs(shape, configs).front().work.seconds,
              0.55 * rank_configs(whole, configs).front().work.seconds);
  }
}

// Epochs have 32 bits.
TEST(ExpertRanks, CountEpochsAnewBeforeTheyAreUsedUp) {
  const auto exchange = std::make_shared<Exchange>(2, 30.0);
  std::array<std::jthread, 2> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks[rank] = std::jthread([&exchange, rank] {
      int fault = 0;
      RankExchange own;
      EXPECT_EQ(own.open({{rank, 2}, exchange}, 0, GpuPart(), &fault).message(), "");
      const int32_t first = own.begin_step(nullptr, nullptr).value();
      EXPECT_GT(first, 0);
      int32_t epoch = first;
      for (int32_t before = 0; epoch > before; epoch = own.begin_step(nullptr, nullptr).value())
        before = epoch;
      EXPECT_EQ(epoch, first);
    });
}

// The other ranks may replay a graph, whose exchanges have the numbers from 0 on.
TEST(ExpertRanks, CountAStepsExchangesAnewWhereItsOpsAreGivenAgain) {
  RankExchange exchange;
  ASSERT_TRUE(exchange.begin_step(nullptr, nullptr).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(exchange.gather({.rows = 0}, nullptr).ok());
  EXPECT_EQ(exchange.sender(kHidden).index, 3);
  exchange.ops_again();
  EXPECT_EQ(exchange.sender(kHidden).index, 0);
}

}  // namespace
}  // namespace moesaic::cuda
