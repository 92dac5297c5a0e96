// The kernels behind matrix.h: stored rows to the device's order, and rows of a table to floats.
#pragma once

#include "backend/cuda/matrix.h"

namespace moesaic::cuda {

// A section as it was stored: dense rows, scales of the formats that keep them apart.
struct Raw {
  Format format;
  int64_t rows, row_bytes, scale_row;
  const uint8_t* data;
  const uint8_t* scales;
};

enum RepackFault : int { kNone, kNotFinite, kNanScale };

struct RepackParams {
  Raw source[2];
  Kind kind;
  Rows order;
  int head_dim;
  int64_t rows, units, blocks;  // rows that exist; the rest is zero
  uint8_t* data;
  uint8_t* scales;
  int* fault;  // a RepackFault is left here
};

Status repack(const RepackParams& params, cudaStream_t stream);

// One expert to the slabs of sm90a/moe_decode_layout.h. The source's scales and codes were checked by
// repack().
struct SlabParams {
  Raw source[2];  // gate and up, or down
  bool down;
  const float* bias[2];  // of this expert's gate and up, or down
  uint8_t* out;
};
Status repack_slabs(const SlabParams& params, cudaStream_t stream);
// out[r] = row tokens[r]; [rows, cols]
Status embed(const Raw& table, int64_t cols, const int32_t* tokens, int rows, float* out,
             cudaStream_t stream);

}  // namespace moesaic::cuda
