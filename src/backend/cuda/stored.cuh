// Rows as they were stored (repack.h's Raw), read on the device.
#pragma once

#include "backend/cuda/repack.h"

namespace moesaic::cuda {

// The same section of a later expert.
__device__ inline Raw of_expert(Raw s, int64_t expert) {
  s.data += expert * s.expert_stride;
  if (s.scales != nullptr) s.scales += expert * s.expert_scale_stride;
  return s;
}

// Columns 8 c .. 8 c + 7 of block b: codes as they are stored, and their scale byte.
__device__ inline uint8_t mxfp4_codes(const Raw& s, int64_t row, int64_t b, int c, uint8_t (&codes)[8]) {
  const uint8_t* r = s.data + row * s.row_stride;
  if (s.format == Format::kMxfp4Gguf) {
    for (int i = 0; i < 8; ++i) {
      const int k = 8 * c + i;
      const uint8_t byte = r[b * 17 + 1 + k % 16];
      codes[i] = k < 16 ? byte & 15 : byte >> 4;
    }
    return r[b * 17];
  }
  for (int i = 0; i < 8; ++i) {
    const uint8_t byte = r[b * 16 + 4 * c + i / 2];
    codes[i] = i % 2 == 0 ? byte & 15 : byte >> 4;
  }
  return s.scales[row * s.scale_stride + b];
}

}  // namespace moesaic::cuda
