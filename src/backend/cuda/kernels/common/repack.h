// The kernels behind matrix.h: stored rows to the device's order, and rows of a table to floats.
#pragma once

#include "backend/cuda/layout/matrix.h"
#include "backend/cuda/layout/slab_layout.h"

namespace moesaic::cuda {

// A section in MXFP4 panels (backend/mxfp4_panels.h) has its rows in these panels of each pair. kNone: it is
// not in panels.
enum class Panels : uint8_t { kNone, kFirst, kSecond, kBoth };

// A section as it was stored: rows of dense elements, scales of the formats that keep them apart. Strides in
// bytes; those of panels are from pair to pair.
struct Raw {
  Format format = Format::kF32;
  int64_t rows = 0, row_stride = 0, scale_stride = 0;
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
  int64_t expert_stride = 0, expert_scale_stride = 0;
  Panels panels = Panels::kNone;
};

// The greatest of several faults is left. kTooLarge: a scale of kQ8_0 above kMostQ8Scale; F16 does not hold
// 128 times as much.
enum RepackFault : int { kNone, kTooLarge, kNotFinite, kNanScale };
inline constexpr float kMostQ8Scale = 511.0f;

struct RepackParams {
  Raw source[2];
  Kind kind;
  RowOrder order;
  int head_dim;
  int64_t rows, weight_tiles, blocks;  // rows that exist; the rest is zero
  int64_t experts;                     // one behind the other
  uint8_t* data;
  uint8_t* scales;
  uint8_t* tops;  // kMxfp8
  int* fault;     // a RepackFault is left here
};

// A whole matrix of experts, from sections without RoPE.
inline RepackParams repacking_of(const Matrix& to, const Raw& first, const Raw& second, int* fault) {
  return {.source = {first, second},
          .kind = to.kind,
          .order = to.order,
          .head_dim = 0,
          .rows = to.rows,
          .weight_tiles = to.weight_tiles,
          .blocks = to.cols / kBlock,
          .experts = to.experts,
          .data = to.data.as<uint8_t>(),
          .scales = to.scales.as<uint8_t>(),
          .tops = nullptr,
          .fault = fault};
}

// Every kind but those in quads.
Status repack(const RepackParams& params, cudaStream_t stream);

// Experts to slabs (kernels/sm90/repack_slabs.h).
struct SlabParams {
  Raw source[2] = {};  // gate and up, or down
  bool down = false;
  slabs::SlabLayout layout;
  int64_t experts = 0;
  const float* bias[2] = {};  // the experts' gate and up, or down; [experts, rows of the section]
  uint8_t* out = nullptr;
  size_t expert_bytes = 0;
  int* fault = nullptr;  // a RepackFault is left here
};

// A table as a section; its rows are not counted.
inline Raw raw_of(const Table& t) {
  const auto* data = t.data.as<uint8_t>();
  return {.format = t.format,
          .row_stride = t.row_bytes,
          .scale_stride = t.cols / kBlock,
          .data = data,
          .scales = data + t.scale_offset};
}
// out[r] = row tokens[r]; [rows, cols]
Status embed(const Raw& table, int64_t cols, const int32_t* tokens, int rows, float* out,
             cudaStream_t stream);

}  // namespace moesaic::cuda
