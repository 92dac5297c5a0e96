// How MXFP4 or MXFP8 weights and MXFP8 activations lie in memory for the block-scaled MMA of
// block_scaled_mma.cuh, m16n8k32, weights being its M, tokens its N. Plain arithmetic, the same on host and
// device; docs/design/sm120.md draws it.
//
// The block is 32 columns and one scale, a k step. The quad is 4 blocks: its scales are one
// 32-bit word, out of which the instruction picks a byte by an immediate. Both operands are streams of quads,
// scales beside their blocks, in the order in which a warp's lanes (lane = 4 g + c) want them:
//
//   weights, 32 rows (a weight tile: MMA tiles m = 0, 1, halves h = 0, 1)
//   a quad: 2,176 bytes of E2M1, 4,224 of E4M3
//     [lane] a word: the scales of row 16 (c / 2) + 8 (c % 2) + g; tile m takes them from lanes 2 m, 2 m + 1
//     E2M1 [block][lane][word 2 m + j]: columns 8 c + 4 j + {0..3} of rows 16 m + g and 16 m + 8 + g
//     E4M3 [block][m][lane][word 2 j + h]: the same columns of row 16 m + 8 h + g, as the MMA takes them
//     A last quad of fewer blocks is shorter.
//   tokens, 8 of them (a group), 1,056 bytes a quad of E4M3
//     [block / 2][lane][block % 2]: columns 8 c .. 8 c + 7 of token g, a byte each
//     [token] a word: the scales
//     A last quad of fewer blocks is as long, and undefined where they would stand.
//
// Column 8 c + 4 j + i of a block is at position 16 j + 4 c + i of the contraction. The columns may be
// permuted freely if both operands use the same order; with this one a lane loads two blocks of tokens as 16
// bytes.
#pragma once

#include <cstdint>

#include "backend/cuda/layout/weight_tile.h"

#ifdef __CUDACC__
#define MOESAIC_LAYOUT __host__ __device__
#else
#define MOESAIC_LAYOUT
#endif

namespace moesaic::cuda::sm120 {

inline constexpr int kQuad = 4;   // blocks
inline constexpr int kGroup = 8;  // tokens

// The weights' type; the tokens are E4M3.
enum class Element : uint8_t { kE2M1, kE4M3 };

MOESAIC_LAYOUT constexpr int block_bytes(Element e) {
  return kWeightTileRows * kBlock / (e == Element::kE2M1 ? 2 : 1);
}
inline constexpr int kWeightTileScaleBytes = kWeightTileRows * kQuad;
MOESAIC_LAYOUT constexpr int weight_tile_quad_bytes(Element e) {
  return kWeightTileScaleBytes + kQuad * block_bytes(e);
}
inline constexpr int kLaneVectorBytes = 512;  // a warp's loads of 16 bytes a lane
// The quads of a group: so many of them, where the scales begin, and the whole.
inline constexpr int kGroupVectors = 2;
inline constexpr int kGroupScales = kGroupVectors * kLaneVectorBytes;
inline constexpr int kGroupQuadBytes = kGroupScales + kGroup * kQuad;

MOESAIC_LAYOUT constexpr int quads_of(int blocks) { return (blocks + kQuad - 1) / kQuad; }
MOESAIC_LAYOUT constexpr int blocks_in_quad(int blocks, int quad) {
  return blocks - quad * kQuad < kQuad ? blocks - quad * kQuad : kQuad;
}
// The bytes of one quad of a weight tile.
MOESAIC_LAYOUT constexpr int quad_bytes(Element e, int blocks) {
  return kWeightTileScaleBytes + blocks * block_bytes(e);
}
MOESAIC_LAYOUT constexpr int64_t weight_tile_bytes(Element e, int blocks) {
  return static_cast<int64_t>(blocks) * block_bytes(e) + quads_of(blocks) * kWeightTileScaleBytes;
}
MOESAIC_LAYOUT constexpr int64_t group_bytes(int blocks) {
  return static_cast<int64_t>(quads_of(blocks)) * kGroupQuadBytes;
}

// ---- places, in bytes from the start of the weight tile or the group ----

MOESAIC_LAYOUT constexpr int64_t block_at(Element e, int block) {
  return static_cast<int64_t>(block / kQuad) * weight_tile_quad_bytes(e) + kWeightTileScaleBytes +
         block % kQuad * block_bytes(e);
}
// E2M1: of both halves
MOESAIC_LAYOUT constexpr int64_t weight_word_at(int block, int lane, int m, int j) {
  return block_at(Element::kE2M1, block) + lane * 16 + (2 * m + j) * 4;
}
// E4M3
MOESAIC_LAYOUT constexpr int64_t weight_word_at(int block, int lane, int m, int j, int h) {
  return block_at(Element::kE4M3, block) + m * 512 + lane * 16 + (2 * j + h) * 4;
}
// row: 0..31 of the weight tile
MOESAIC_LAYOUT constexpr int64_t weight_scale_at(Element e, int row, int block) {
  return static_cast<int64_t>(block / kQuad) * weight_tile_quad_bytes(e) + (row % 8 * 4 + row / 8) * 4 +
         block % kQuad;
}
// Two words: columns 8 c .. 8 c + 7.
MOESAIC_LAYOUT constexpr int64_t token_bytes_at(int token, int block, int c) {
  return static_cast<int64_t>(block / kQuad) * kGroupQuadBytes + (4 * token + c) * 16 +
         block % kQuad / 2 * kLaneVectorBytes + block % 2 * 8;
}
MOESAIC_LAYOUT constexpr int64_t token_scale_at(int token, int block) {
  return static_cast<int64_t>(block / kQuad) * kGroupQuadBytes + kGroupScales + 4 * token + block % kQuad;
}

// ---- the word of E2M1 weights ----
//
// m16n8k32 wants an E2M1 in the middle of a byte, 00SEEM00. So four of them (h = 0) stand just there, and the
// other four (h = 1) in the bits between, such that a rotation by four brings them there: three instructions
// for eight weights.

inline constexpr uint32_t kContainers = 0x3C3C3C3C;

MOESAIC_LAYOUT constexpr uint32_t rotate_left(uint32_t x, int n) {
  return n % 32 == 0 ? x : x << (n % 32) | x >> (32 - n % 32);
}
// code: E2M1; h, i: which of the word's eight. The word is the sum of its parts.
MOESAIC_LAYOUT constexpr uint32_t weight_bits(uint32_t code, int h, int i) {
  return rotate_left(code, 8 * i + (h == 0 ? 2 : 6));
}
// Four containers: the MMA's register of half h.
MOESAIC_LAYOUT constexpr uint32_t containers(uint32_t word, int h) {
  return (h == 0 ? word : rotate_left(word, 28)) & kContainers;
}

}  // namespace moesaic::cuda::sm120
