// Rows as they were stored (repack.h's Raw), read on the device.
#pragma once

#include <cuda_fp8.h>

#include "backend/cuda/kernels/common/repack.h"
#include "backend/mxfp4_panels.h"
#include "mx/formats.h"

namespace moesaic::cuda {

// The same section of a later expert.
__device__ inline Raw of_expert(Raw s, int64_t expert) {
  s.data += expert * s.expert_stride;
  if (s.scales != nullptr) s.scales += expert * s.expert_scale_stride;
  return s;
}

// Codes of a section in panels: one nibble of each byte of two groups' words.
__device__ inline uint8_t panel_codes(const Raw& s, int64_t row, int64_t b, int c, uint8_t (&codes)[8]) {
  const bool both = s.panels == Panels::kBoth;
  const int64_t pair = row / (both ? kPair * kPanel : kPanel);
  const int panel = both ? static_cast<int>(row / kPanel % kPair) : s.panels == Panels::kSecond ? 1 : 0;
  const int in_panel = static_cast<int>(row % kPanel);
  const uint8_t* const groups = s.data + pair * s.row_stride + 4 * in_panel;
  for (int j = 0; j < 2; ++j) {
    const uint32_t word =
        *reinterpret_cast<const uint32_t*>(groups + group_at<kMxfp4Groups>(panel, b, c % 2 * 2 + j));
    for (int i = 0; i < 4; ++i) codes[4 * j + i] = word >> (8 * i + (c < 2 ? 0 : 4)) & 15;
  }
  return s.scales[pair * s.scale_stride + panel_scale_at(panel, b, in_panel)];
}

// Columns 8 c .. 8 c + 7 of block b: codes as they are stored, and their scale byte.
__device__ inline uint8_t mxfp4_codes(const Raw& s, int64_t row, int64_t b, int c, uint8_t (&codes)[8]) {
  if (s.panels != Panels::kNone) return panel_codes(s, row, b, c, codes);
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

// The same of MXFP8.
__device__ inline uint8_t mxfp8_codes(const Raw& s, int64_t row, int64_t b, int c, uint8_t (&codes)[8]) {
  for (int i = 0; i < 8; ++i) codes[i] = s.data[row * s.row_stride + b * 32 + 8 * c + i];
  return s.scales[row * s.scale_stride + b];
}

// A row of a source; row -1: none, zeros stand there.
struct SourceRow {
  const Raw* source;
  int64_t row;
};
// Which stands at (weight_tile, m, h, g). sources: as those of p, of one expert
__device__ inline SourceRow row_at(const RepackParams& p, const Raw* sources, int64_t weight_tile, int m,
                                   int h, int g) {
  switch (p.order) {
    case RowOrder::kPairs: {
      const Raw* s = &sources[h];
      const int64_t row = weight_tile * 16 + 8 * m + g;
      return {s, row < s->rows ? row : -1};
    }
    case RowOrder::kHeads: {
      const int64_t per_head = p.head_dim / kWeightTileRows;
      const int64_t row =
          weight_tile / per_head * p.head_dim + weight_tile % per_head * 16 + 8 * m + g + h * p.head_dim / 2;
      return {&sources[0], row};
    }
    default: {
      const int64_t row = weight_tile * kWeightTileRows + 16 * m + 8 * h + g;
      return {&sources[0], row < p.rows ? row : -1};
    }
  }
}

__device__ inline float decode_e4m3(uint8_t code) {
  return __half2float(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3));
}
__device__ inline float decode_e2m1(uint8_t code) {
  const float magnitude = (code & 6) == 0
                              ? 0.5f * (code & 1)
                              : (1.0f + 0.5f * (code & 1)) * static_cast<float>(1 << ((code >> 1 & 3) - 1));
  return code & 8 ? -magnitude : magnitude;
}
__device__ inline float f16_at(const uint8_t* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(p)));
}

// Columns 8 c .. 8 c + 7 of block b.
__device__ inline void read8(const Raw& s, int64_t row, int64_t b, int c, float (&v)[8]) {
  const uint8_t* r = s.data + row * s.row_stride;
  const int64_t k = b * kBlock + 8 * c;
  switch (s.format) {
    case Format::kF32:
      for (int i = 0; i < 8; ++i) v[i] = reinterpret_cast<const float*>(r)[k + i];
      break;
    case Format::kF16:
      for (int i = 0; i < 8; ++i) v[i] = f16_at(r + 2 * (k + i));
      break;
    case Format::kBF16:
      for (int i = 0; i < 8; ++i) v[i] = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(r)[k + i]);
      break;
    case Format::kQ8_0:
      for (int i = 0; i < 8; ++i) v[i] = f16_at(r + b * 34) * static_cast<int8_t>(r[b * 34 + 2 + 8 * c + i]);
      break;
    case Format::kMxfp8:
      for (int i = 0; i < 8; ++i)
        v[i] = decode_e4m3(r[k + i]) * exp2f(s.scales[row * s.scale_stride + b] - 127.0f);
      break;
    default: {
      uint8_t codes[8];
      const float scale = exp2f(mxfp4_codes(s, row, b, c, codes) - 127.0f);
      for (int i = 0; i < 8; ++i) v[i] = decode_e2m1(codes[i]) * scale;
    }
  }
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
// Returns the block's largest magnitude; the four lanes of a quad have an eighth each.
__device__ inline float amax(const float (&v)[8]) {
  float top = 0;
  for (int i = 0; i < 8; ++i) top = fmaxf(top, fabsf(v[i]));
  return quad_max(top);
}

// The block's values by the rules of mx/block.h; returns the scale. top: the block's largest magnitude.
__device__ inline uint8_t to_mxfp8(float top, const float (&v)[8], uint8_t (&out)[8]) {
  const int above = top > 0 ? ilogbf(top) + (ldexpf(top, -ilogbf(top)) > 1.75f) : 0;
  const int exponent = top > 0 ? max(above - 8, -126) : -126;
  for (int i = 0; i < 8; ++i)
    out[i] = __nv_cvt_float_to_fp8(ldexpf(v[i], -exponent), __NV_SATFINITE, __NV_E4M3);
  return static_cast<uint8_t>(exponent + 127);
}
__device__ inline uint8_t to_mxfp4(float top, const float (&v)[8], uint8_t (&out)[8]) {
  const int exponent = top > 0 ? max(ilogbf(top) - 2, -126) : -126;
  for (int i = 0; i < 8; ++i) out[i] = mx::encode_e2m1(ldexpf(v[i], -exponent));
  return static_cast<uint8_t>(exponent + 127);
}

// As codes of p's kind, MXFP4 or MXFP8: those that are stored, or the values rounded. By the four lanes of a
// quad together; leaves a fault.
__device__ inline uint8_t mx_codes(const RepackParams& p, const SourceRow& row, int64_t b, int c,
                                   uint8_t (&codes)[8]) {
  const bool fp4 = p.kind == Kind::kMxfp4 || p.kind == Kind::kMxfp4Quads;
  const Format stored = row.source->format;
  const bool same = fp4 ? is_mxfp4(stored) : stored == Format::kMxfp8;
  float v[8] = {};
  if (row.row >= 0 && !same) read8(*row.source, row.row, b, c, v);
  for (const float x : v) {
    if (!isfinite(x)) *p.fault = kNotFinite;
  }
  const float top = amax(v);
  if (row.row < 0 || !same) return fp4 ? to_mxfp4(top, v, codes) : to_mxfp8(top, v, codes);
  const uint8_t scale =
      fp4 ? mxfp4_codes(*row.source, row.row, b, c, codes) : mxfp8_codes(*row.source, row.row, b, c, codes);
  if (scale == 255) *p.fault = kNanScale;
  for (const uint8_t code : codes) {
    if (!fp4 && (code & 0x7F) == 0x7F) *p.fault = kNotFinite;
  }
  return scale;
}

}  // namespace moesaic::cuda
