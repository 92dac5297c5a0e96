// Element and scale codecs of the OCP Microscaling formats (MX v1.0): E2M1 (FP4), E4M3 (FP8), E8M0 (scale),
// and the half-width floats that checkpoints carry. Plain integer arithmetic, constexpr, the same on host and
// device.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define MOESAIC_HD __host__ __device__
#else
#define MOESAIC_HD
#endif

namespace moesaic::mx {

inline constexpr int kBlock = 32;           // elements that share a scale
inline constexpr uint8_t kScaleNan = 0xFF;  // E8M0's only special value
inline constexpr float kE2m1Max = 6.0f;
inline constexpr float kE4m3Max = 448.0f;

MOESAIC_HD constexpr uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }
MOESAIC_HD constexpr float bits_float(uint32_t bits) { return std::bit_cast<float>(bits); }
MOESAIC_HD constexpr bool is_nan(float x) { return (float_bits(x) & 0x7FFFFFFFu) > 0x7F800000u; }

// 2^exponent, exact over float's range including subnormals (exponent in [-149, 127]).
MOESAIC_HD constexpr float exp2_int(int exponent) {
  return exponent >= -126 ? bits_float(static_cast<uint32_t>(exponent + 127) << 23)
                          : bits_float(1u << (exponent + 149));
}

// The nearest integer, ties to even, for 0 <= x < 2^22.
MOESAIC_HD constexpr uint32_t round_even(float x) {
  const auto floor = static_cast<uint32_t>(x);
  const float rest = x - static_cast<float>(floor);
  return floor + ((rest > 0.5f || (rest == 0.5f && (floor & 1u) != 0)) ? 1u : 0u);
}

// floor(log2(x)) for finite x > 0.
MOESAIC_HD constexpr int floor_log2(float x) {
  const uint32_t bits = float_bits(x) & 0x7FFFFFFFu;
  return bits >= 0x00800000u ? static_cast<int>(bits >> 23) - 127 : 31 - std::countl_zero(bits) - 149;
}

// A minifloat with one sign bit, kMantissa mantissa bits and the given exponent bias, no infinities: values
// above kMax saturate. The result is the code without NaN handling.
template <int kMantissa, int kBias>
MOESAIC_HD constexpr uint8_t encode_minifloat(float x, float max, uint8_t max_code, int sign_shift) {
  const uint32_t sign = (float_bits(x) >> 31) << sign_shift;
  const float magnitude = bits_float(float_bits(x) & 0x7FFFFFFFu);
  if (magnitude >= max) return static_cast<uint8_t>(sign | max_code);
  if (magnitude == 0.0f) return static_cast<uint8_t>(sign);
  constexpr int kMinExponent = 1 - kBias;  // the smallest normal's; subnormals share its spacing
  const int exponent = floor_log2(magnitude) < kMinExponent ? kMinExponent : floor_log2(magnitude);
  // Below float's own subnormals the scaled value only rounds to zero, so the product may be split in two.
  const float scaled = magnitude * exp2_int(kMantissa) * exp2_int(-exponent);
  const uint32_t steps = round_even(scaled);  // in units of 2^(exponent - kMantissa)
  // A carry out of the mantissa lands in the exponent field by itself.
  const uint32_t code = (static_cast<uint32_t>(exponent + kBias - 1) << kMantissa) + steps;
  return static_cast<uint8_t>(sign | code);
}

// E2M1: codes 0..7 = 0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. Rounds to nearest even, saturates at 6.
// FP4 has no NaN: a NaN saturates, and the block quantisers mark it in the scale instead.
MOESAIC_HD constexpr uint8_t encode_e2m1(float x) {
  return encode_minifloat<1, 1>(is_nan(x) ? kE2m1Max : x, kE2m1Max, 7, 3);
}
MOESAIC_HD constexpr float decode_e2m1(uint8_t code) {
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  const float magnitude = exponent == 0
                              ? 0.5f * static_cast<float>(mantissa)
                              : (1.0f + 0.5f * static_cast<float>(mantissa)) * exp2_int(exponent - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// E4M3 (the OCP "FN" variant): bias 7, no infinity, 0x7F and 0xFF are NaN. Rounds to nearest even, saturates
// at 448.
MOESAIC_HD constexpr uint8_t encode_e4m3(float x) {
  return is_nan(x) ? uint8_t{0x7F} : encode_minifloat<3, 7>(x, kE4m3Max, 0x7E, 7);
}
MOESAIC_HD constexpr float decode_e4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return bits_float(0x7FC00000u);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * exp2_int(-9)
                                        : (8.0f + static_cast<float>(mantissa)) * exp2_int(exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// E8M0: 2^(code - 127); 0xFF is NaN. Code 0 is 2^-127, a float subnormal.
MOESAIC_HD constexpr float decode_e8m0(uint8_t code) {
  return code == kScaleNan ? bits_float(0x7FC00000u) : exp2_int(static_cast<int>(code) - 127);
}
// The code of 2^exponent, clamped to the format's range.
MOESAIC_HD constexpr uint8_t encode_e8m0(int exponent) {
  return static_cast<uint8_t>(exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127);
}

MOESAIC_HD constexpr float decode_bf16(uint16_t code) {
  return bits_float(static_cast<uint32_t>(code) << 16);
}
// Rounds to nearest even; a NaN stays a (quiet) NaN.
MOESAIC_HD constexpr uint16_t encode_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if (is_nan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

MOESAIC_HD constexpr float decode_f16(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t exponent = (code >> 10) & 31u, mantissa = code & 0x3FFu;
  if (exponent == 31) return bits_float(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * exp2_int(-24);
  return sign != 0 ? -magnitude : magnitude;
}
MOESAIC_HD constexpr uint16_t encode_f16(float x) {
  const auto sign = static_cast<uint16_t>((float_bits(x) >> 16) & 0x8000u);
  const uint32_t magnitude = float_bits(x) & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds past 65504
  if (magnitude < 0x38800000u) {                                               // subnormal: units of 2^-24
    return static_cast<uint16_t>(sign | round_even(bits_float(magnitude) * exp2_int(24)));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

}  // namespace moesaic::mx
