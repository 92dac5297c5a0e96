#include "backend/cuda/step/step_input.h"

#include <gtest/gtest.h>

#include <cstring>

namespace moesaic::cuda {
namespace {

// Sequences of so many rows each, whose first positions are given.
Batch batch_of(const std::vector<std::pair<int, int>>& sequences) {
  Batch b;
  for (const auto& [rows, first] : sequences) {
    const int end = first + rows;
    b.sequences.push_back({.first_row = b.rows(), .rows = rows, .context = end});
    for (int i = 0; i * kPageTokens < end; ++i) {
      b.sequences.back().full_pages.push_back(i);
      b.sequences.back().window_pages.push_back(i);
    }
    for (int position = first; position < end; ++position) {
      b.tokens.push_back(1);
      b.positions.push_back(position);
    }
  }
  return b;
}

std::vector<RowTile> tiles_of(const std::vector<int32_t>& packed, int at, int count) {
  std::vector<RowTile> tiles(static_cast<size_t>(count));
  std::memcpy(tiles.data(), &packed[static_cast<size_t>(at)], tiles.size() * sizeof(RowTile));
  return tiles;
}

// A draft that is verified reads, row by row, what its own rows write.
TEST(StepInput, FewRowsOfASequenceDecode) {
  const Batch b = batch_of({{1, 40}, {3, 62}, {9, 0}});
  const Tiling tiling{.tokens = 16, .most_decode_rows = 8};
  const StepShape shape = shape_of(b, tiling);
  EXPECT_EQ(shape.rows, 13);
  EXPECT_EQ(shape.decode_tiles, 4);
  EXPECT_EQ(shape.prefill_tiles, 1);
  std::vector<int32_t> packed;
  pack(b, shape, tiling, packed);
  const StepLayout l = layout_of(shape);
  const std::vector<RowTile> decode = tiles_of(packed, l.decode_tiles, 4),
                             prefill = tiles_of(packed, l.prefill_tiles, 1);
  for (int i = 0; i < 4; ++i) {
    const RowTile& tile = decode[static_cast<size_t>(i)];
    EXPECT_EQ(tile.row, i);
    EXPECT_EQ(tile.count, 1);
    EXPECT_EQ(tile.position, i == 0 ? 40 : 61 + i);
    EXPECT_EQ(tile.written, i == 0 ? 40 : 62);
  }
  EXPECT_EQ(prefill[0].row, 4);
  EXPECT_EQ(prefill[0].count, 9);
  EXPECT_EQ(packed[static_cast<size_t>(l.pages + decode[3].table[0])], 0);
  EXPECT_EQ(decode[1].table[0], decode[3].table[0]);
}

TEST(StepInput, TheLongestContextSaysHowManySplits) {
  const Tiling tiling{.tokens = 16, .most_decode_rows = 8};
  EXPECT_EQ(shape_of(batch_of({{1, 10}}), tiling).kv_splits, 1);
  EXPECT_EQ(shape_of(batch_of({{1, 10}, {4, 16000}}), tiling).kv_splits, kMostKvSplits);
}

TEST(StepInput, NothingDecodesWhereSumsMustNotDependOnTheBatch) {
  const StepShape shape = shape_of(batch_of({{1, 40}, {3, 62}}), {.tokens = 16, .most_decode_rows = 0});
  EXPECT_EQ(shape.decode_tiles, 0);
  EXPECT_EQ(shape.prefill_tiles, 2);
}

}  // namespace
}  // namespace moesaic::cuda
