// Operands and epilogues of the kernels in this folder: plain structs, the same on host and device.
#pragma once

#include "backend/cuda/kernels/common/operands.h"
#include "backend/cuda/layout/quad_layout.h"

namespace moesaic::cuda::sm120 {

inline constexpr int kSlices = 4;

// MXFP8 activations, or room for them. A work tile's permuted rows are the tokens work_tile.start ..
// work_tile.start + work_tile.count - 1, of which the first begins a group; a group is group_bytes(cols / 32)
// bytes. Tokens beyond count may hold anything.
struct Tokens {
  uint8_t* data = nullptr;
  int cols = 0;                          // a multiple of 32
  const WorkTile* work_tiles = nullptr;  // null: one matrix, row t of `count` is token t
  const int* work_tile_count = nullptr;
  int most_work_tiles = 0;
  int tile = 8;   // permuted rows of a work tile, at most
  int count = 0;  // without work tiles
};
// Rows in the order of RowOrder::kPairs (matrix.h): a = gate sigmoid(alpha gate) (up + offset), gate clamped
// from above, up from both sides, as tokens of the second product, numbered as in the first.
struct SwiGluMx {
  uint8_t* out = nullptr;
  int intermediate = 0;
  const float* gate_bias = nullptr;  // [experts, intermediate]
  const float* up_bias = nullptr;
  float alpha = 0, limit = 0, offset = 1;
};

}  // namespace moesaic::cuda::sm120
