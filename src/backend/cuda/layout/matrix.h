// Weights on the device, in the order in which a warp feeds them to mma.sync.
//
// A weight tile has 32 rows, a block 32 columns (K). Lane l = 4 g + c of a warp holds, of each block, the
// columns 8 c .. 8 c + 7 of the four rows 16 m + 8 h + g (m, h in 0..1): m is the MMA tile, h its upper or
// lower half. The MMAs j = 0, 1 of a tile take columns 8 c + 4 j + {0, 1} in a0 (h = 0) and a1 (h = 1), + {2,
// 3} in a2 and a3: the columns may be permuted freely if both operands use the same order, and with this one
// the other operand (activations, row-major) is one 16-byte load a lane as well.
//
//   data, per weight tile: K / 32 blocks, one behind the other; per block
//     kBF16, kF16       [4 = m, j][lane][16 bytes = a0 a1 a2 a3]
//     kQ8_0, kMxfp8     [2 = m][lane][16 bytes = j: a0 a1 | a2 a3], a byte each, Q8_0 plus 128
//     kMxfp4            [lane][16 bytes = 4 words: m, j], a word as dequant.cuh spells it
//   scales, per weight tile and block: [g][4 = m, h]: a byte each (E8M0) for kMxfp4 and kMxfp8, F16 for kQ8_0
//
// Rows are permuted so that what an epilogue joins stands in one lane: see RowOrder.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "backend/backend.h"
#include "backend/cuda/layout/weight_tile.h"
#include "backend/cuda/runtime/device.h"
#include "core/weights.h"

namespace moesaic::cuda {

enum class Kind : uint8_t {
  kBF16,
  kF16,
  kQ8_0,
  kMxfp8,
  kMxfp4,
  kMxfp4Quads,  // in the order of layout/quad_layout.h, scales among the data
  kMxfp8Quads,
  kCount
};
std::string_view kind_name(Kind kind);
bool in_weight_tiles(Kind kind);
bool in_wide_tiles(Kind kind);  // weight tiles of eight bits or more
inline bool in_quads(Kind kind) { return !in_weight_tiles(kind); }
// Activations that meet a kind: BF16, else F16.
inline bool takes_bf16(Kind kind) { return kind == Kind::kBF16 || in_quads(kind); }

// The factor of normed rows of so many values in F16: at most sqrt(width) * largest_weight becomes
// less than 2^15, so that F16's whole range is used, whatever the norm's weights are.
float f16_factor(int width, float largest_weight);

// Which source row stands at (weight_tile, m, h, g).
enum class RowOrder : uint8_t {
  kPlain,  // 32 weight_tile + 16 m + 8 h + g
  kPairs,  // two sources (gate, up): row 16 weight_tile + 8 m + g of source h
  kHeads,  // halves of a head, which RoPE joins: pair p = 16 (weight_tile mod D/32) + 8 m + g, row
           // head D + p + h D / 2
};

struct Matrix {
  Kind kind = Kind::kBF16;
  RowOrder order = RowOrder::kPlain;
  int64_t rows = 0, cols = 0;     // for one expert
  int64_t weight_tiles = 0;       // for one expert
  int head_dim = 0;               // for kHeads
  int64_t first_weight_tile = 0;  // the weight tile whose results are needed first
  int64_t experts = 1;
  DeviceBuffer data, scales;
  // kMxfp8: [weight_tiles][32] each row's largest scale, at least 1, in a block of scales' order.
  DeviceBuffer tops;
  int64_t weight_tile_bytes() const;        // data of a weight tile
  int64_t weight_tile_scale_bytes() const;  // scales of a weight tile
  int64_t weight_tile_top_bytes() const { return kind == Kind::kMxfp8 ? kWeightTileRows : 0; }
  double bytes() const {
    return static_cast<double>(experts * weight_tiles * (weight_tile_bytes() + weight_tile_scale_bytes()));
  }
};

// The error for a combination that no compiled kernel of `op` takes.
Status no_kernel(const char* op, const Matrix& w, int tokens);

inline int64_t weight_tiles_of(int64_t rows) { return (rows + kWeightTileRows - 1) / kWeightTileRows; }

// The kind that a matrix stored as `format` gets. block_scaled: products of MX weights go through
// kernels/sm120/.
Kind kind_of(Format format, std::optional<Format> wanted, bool block_scaled = false);

// Rows that are only ever looked up, as they were stored; scales (MXFP8) behind the data.
struct Table {
  Format format = Format::kF32;
  int64_t cols = 0, row_bytes = 0, scale_offset = 0;
  DeviceBuffer data;
};

}  // namespace moesaic::cuda
