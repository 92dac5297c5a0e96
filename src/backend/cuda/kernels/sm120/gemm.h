// Products y = W x from MXFP4 or MXFP8 weights and MXFP8 activations (quad_layout.h), through the
// block-scaled MMA of block_scaled_mma.cuh: the experts' (E2M1), or one matrix's.
//
// All tiles add in one order: the contraction is cut into kSlices fixed slices of whole quads, a slice is one
// chain of MMAs, and the slices are added in order. So a token's result has the same bits whatever the tile
// and the batch.
#pragma once

#include "backend/cuda/kernels/sm120/tokens.h"
#include "backend/cuda/layout/matrix.h"

namespace moesaic::cuda::sm120 {

// Weight tiles of 32 rows of all experts, [experts][weight_tiles][weight_tile_bytes(element, cols / 32)].
struct QuadWeights {
  const uint8_t* data = nullptr;
  int weight_tiles = 0;  // weight tiles of one expert
  Element element = Element::kE2M1;
};
// As uploaded: a Matrix of Kind::kMxfp4Quads or kMxfp8Quads.
inline QuadWeights weights_of(const Matrix& m) {
  return {.data = m.data.as<uint8_t>(),
          .weight_tiles = static_cast<int>(m.weight_tiles),
          .element = m.kind == Kind::kMxfp8Quads ? Element::kE4M3 : Element::kE2M1};
}

// The tiles that are compiled; each serves work tiles of at most so many tokens, a part counting as one.
enum class Tile {
  k8,
  k16,
  k32,
  k64,
  k128,
  kPrefill  // 128 tokens, twice the rows
};
inline constexpr Tile kTiles[] = {Tile::k8, Tile::k16, Tile::k32, Tile::k64, Tile::k128, Tile::kPrefill};
inline constexpr int tile_tokens(Tile tile) {
  constexpr int kTokens[] = {8, 16, 32, 64, 128, 128};
  return kTokens[static_cast<int>(tile)];
}

// The kernel behind a tile: gemm_small_m.cuh for so many groups of 8 tokens, or with groups = 0
// gemm_large_m.cuh, with as many stages as leave room for a second CTA where that is possible.
struct TileShape {
  int groups = 0;
  int tokens = 0, weight_tiles = 0, stages = 0;
};
inline constexpr TileShape shape_of(Element weights, Tile tile) {
  const bool eight_bits = weights == Element::kE4M3;
  if (tile_tokens(tile) <= 32) return {.groups = tile_tokens(tile) / kGroup};
  if (tile == Tile::k64) return {.tokens = 64, .weight_tiles = 2, .stages = eight_bits ? 2 : 3};
  if (tile == Tile::kPrefill) return {.tokens = 128, .weight_tiles = 4, .stages = eight_bits ? 2 : 3};
  return {.tokens = 128, .weight_tiles = 2, .stages = eight_bits ? 3 : 2};
}
// Weight tiles of a small-M CTA, by epilogue: SwiGLU's blocks of 32 values need two.
inline constexpr int kSwiGluWeightTiles = 2, kRowWeightTiles = 1;

// The smallest tile for work tiles of so many tokens of `parts` parts, up to k128.
inline constexpr Tile tile_for(int tokens, int parts) {
  for (const Tile tile : {Tile::k8, Tile::k16, Tile::k32, Tile::k64}) {
    if ((tokens + kGroup - 1) / kGroup * kGroup * parts <= tile_tokens(tile)) return tile;
  }
  return Tile::k128;
}
// For so many tokens of one matrix: more rows to a CTA only where there are CTAs enough.
inline constexpr Tile dense_tile(int tokens, int parts) {
  return tokens * parts > 512 ? Tile::kPrefill : tile_for(tokens, parts);
}
inline Tokens dense_tokens(void* data, int cols, int tokens, int parts) {
  const int tile = tile_tokens(dense_tile(tokens, parts)) / parts;
  return {.data = static_cast<uint8_t*>(data),
          .cols = cols,
          .most_work_tiles = (tokens + tile - 1) / tile,
          .tile = tile,
          .count = tokens,
          .parts = parts};
}

// A product of 0 weight tiles only makes sure that there is code for it (load_tile.h).
//
// E2M1 weights only.
Status gemm(const QuadWeights& w, const Tokens& x, Tile tile, const SwiGluMx& out, cudaStream_t stream);
const void* any_tile();  // one of the kernels, to see what code there is of them
// out[permuted_row, row] (+)= value + bias[expert, row]
Status gemm(const QuadWeights& w, const Tokens& x, Tile tile, const Store& out, cudaStream_t stream);
// Rows in the order of RowOrder::kHeads, one matrix.
Status gemm(const QuadWeights& w, const Tokens& x, Tile tile, const Qkv& out, cudaStream_t stream);

}  // namespace moesaic::cuda::sm120
