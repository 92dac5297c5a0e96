// norm()'s rows in the tiles of wgmma, against the plain ones.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/testing/host_simulator/run_wgmma.h"

namespace moesaic::cuda {
namespace {

std::vector<uint16_t> normed(int rows, int hidden, int tile, bool bf16) {
  std::mt19937 random(hidden);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows) * hidden), weight(hidden);
  for (std::vector<float>* values : {&x, &weight}) {
    for (float& v : *values) v = normal(random);
  }
  const int room = tile == 0 ? rows : (rows + tile - 1) / tile * tile;
  std::vector<uint16_t> out(static_cast<size_t>(room) * hidden, 0xFFFF);
  int fault = 0;
  const Status status = norm({.x = x.data(),
                              .rows = rows,
                              .hidden = hidden,
                              .eps = 1e-5F,
                              .factor = 0.5F,
                              .weight = weight.data(),
                              .out = out.data(),
                              .bf16 = bf16,
                              .out_tile = tile,
                              .fault = &fault},
                             nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(fault, 0);
  return out;
}

TEST(NormOnHost, TilesHoldThePlainRows) {
  for (const int hidden : {64, 448, 2880}) {
    for (const int tile : {32, 64, 112, 128}) {
      for (const int rows : {1, 33, 130}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << hidden << " in tiles of " << tile);
        const bool bf16 = rows % 2 == 0;
        const std::vector<uint16_t> plain = normed(rows, hidden, 0, bf16),
                                    tiled = normed(rows, hidden, tile, bf16);
        for (int row = 0; row < rows; ++row) {
          for (int column = 0; column < hidden; ++column) {
            const int64_t first = static_cast<int64_t>(row / tile * tile) * hidden,
                          at = first + sm90::place_in_tile(tile, row % tile, column);
            ASSERT_EQ(tiled[at], plain[static_cast<int64_t>(row) * hidden + column]) << row << ", " << column;
            ASSERT_EQ(ActivationRow(tile, hidden, row).at(column), at);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
