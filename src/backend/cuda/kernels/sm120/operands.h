// Operands and epilogues of the kernels in this folder: plain structs, the same on host and device.
#pragma once

#include "backend/cuda/kernels/common/operands.h"
#include "backend/cuda/layout/quad_layout.h"

namespace moesaic::cuda::sm120 {

inline constexpr int kSlices = 4;
inline constexpr int kMostParts = 2;  // Tokens::parts is at most so many

// MXFP8 activations, or room for them. A work tile's permuted rows are the tokens work_tile.start ..
// work_tile.start + work_tile.count - 1, of which the first begins a group; a group is group_bytes(cols / 32)
// bytes. Tokens beyond count may hold anything.
//
// A token is the sum of `parts` MXFP8 vectors: one, or two, the second being what the first one's rounding
// left. Two hold a BF16 value exactly, down to 2^-15 of its block's largest. Groups of the same tokens stand
// side by side, a part each, and to the products a part is as good as a token.
struct Tokens {
  uint8_t* data = nullptr;
  int cols = 0;                          // a multiple of 32
  const WorkTile* work_tiles = nullptr;  // null: one matrix, row t of `count` is token t
  const int* work_tile_count = nullptr;
  int most_work_tiles = 0;
  int tile = 8;   // permuted rows of a work tile, at most
  int count = 0;  // without work tiles
  int parts = 1;
};
// Rows in the order of RowOrder::kPairs (matrix.h): a = gate sigmoid(alpha gate) (up + offset), gate clamped
// from above, up from both sides, as tokens of the second product, numbered as in the first
// and of as many parts.
struct SwiGluMx {
  uint8_t* out = nullptr;
  int intermediate = 0;
  const float* gate_bias = nullptr;  // [experts, intermediate]
  const float* up_bias = nullptr;
  float alpha = 0, limit = 0, offset = 1;
};

}  // namespace moesaic::cuda::sm120
