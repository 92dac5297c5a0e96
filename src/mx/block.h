// Block quantisers of the MX formats: 32 elements along the contraction dimension share one E8M0 scale.
// The scale is 2^(floor(log2(amax)) - emax), emax = 2 for E2M1 and 8 for E4M3 (MX v1.0, section 6.3), and for
// E4M3 twice that where its largest, 448, would be exceeded. Elements round to nearest even; E2M1's saturate.
// A block that holds a NaN or an infinity gets the NaN scale.
#pragma once

#include <cstdint>

#include "mx/formats.h"

namespace moesaic::mx {

// Byte j of a packed FP4 block holds elements 2j (low nibble) and 2j + 1 (high nibble): the Hugging Face
// order, which is this project's canonical one.
inline constexpr int kPackedBlock = kBlock / 2;

// The scale of a block whose largest magnitude is amax.
MOESAIC_HD constexpr uint8_t block_scale(float amax, int emax) {
  if (!(amax <= 3.402823466e38f)) return kScaleNan;
  return amax == 0.0f ? encode_e8m0(-127) : encode_e8m0(floor_log2(amax) - emax);
}

// max |x|, or NaN if any element is NaN or infinite.
MOESAIC_HD constexpr float block_amax(const float* x) {
  // Magnitudes are in the order of their bits, infinity and NaN last: integers, which compilers vectorise.
  uint32_t top = 0;
  for (int i = 0; i < kBlock; ++i) {
    const uint32_t bits = float_bits(x[i]) & 0x7FFFFFFFu;
    top = bits > top ? bits : top;
  }
  return bits_float(top < 0x7F800000u ? top : 0x7FC00000u);
}

// x / 2^(scale - 127), exact unless the quotient leaves float's range.
MOESAIC_HD constexpr float divide_by_scale(float x, uint8_t scale) {
  const int exponent = 127 - static_cast<int>(scale);  // in [-127, 127]
  return exponent >= -126 ? x * exp2_int(exponent) : x * exp2_int(-126) * 0.5f;
}

// 32 floats -> 16 packed bytes; returns the scale.
MOESAIC_HD constexpr uint8_t quantize_mxfp4(const float* x, uint8_t* packed) {
  const uint8_t scale = block_scale(block_amax(x), 2);
  for (int j = 0; j < kPackedBlock; ++j) {
    const uint8_t low = scale == kScaleNan ? uint8_t{0} : encode_e2m1(divide_by_scale(x[2 * j], scale));
    const uint8_t high = scale == kScaleNan ? uint8_t{0} : encode_e2m1(divide_by_scale(x[2 * j + 1], scale));
    packed[j] = static_cast<uint8_t>(low | (high << 4));
  }
  return scale;
}

MOESAIC_HD constexpr void dequantize_mxfp4(const uint8_t* packed, uint8_t scale, float* x) {
  const float s = decode_e8m0(scale);
  for (int j = 0; j < kPackedBlock; ++j) {
    x[2 * j] = decode_e2m1(packed[j] & 15) * s;
    x[2 * j + 1] = decode_e2m1(packed[j] >> 4) * s;
  }
}

// 32 floats -> 32 E4M3 bytes; returns the scale.
MOESAIC_HD constexpr uint8_t quantize_mxfp8(const float* x, uint8_t* codes) {
  const float amax = block_amax(x);
  uint8_t scale = block_scale(amax, 8);
  if (scale != kScaleNan && divide_by_scale(amax, scale) > kE4m3Max) ++scale;
  for (int i = 0; i < kBlock; ++i) {
    codes[i] = scale == kScaleNan ? uint8_t{0} : encode_e4m3(divide_by_scale(x[i], scale));
  }
  return scale;
}

MOESAIC_HD constexpr void dequantize_mxfp8(const uint8_t* codes, uint8_t scale, float* x) {
  const float s = decode_e8m0(scale);
  for (int i = 0; i < kBlock; ++i) x[i] = decode_e4m3(codes[i]) * s;
}

}  // namespace moesaic::mx
