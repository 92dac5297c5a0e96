#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "mx/block.h"

namespace moesaic::mx {
namespace {

TEST(E2m1, EveryCode) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    const float value = (code & 8 ? -1.0f : 1.0f) * kValues[code & 7];
    EXPECT_EQ(decode_e2m1(static_cast<uint8_t>(code)), value);
    EXPECT_EQ(encode_e2m1(value), code);
  }
}

// Between neighbours every value goes to the nearer; a tie to the even code.
template <typename Encode, typename Decode>
void check_rounding(int last_code, Encode encode, Decode decode) {
  for (int code = 0; code < last_code; ++code) {
    const float low = decode(static_cast<uint8_t>(code)), high = decode(static_cast<uint8_t>(code + 1));
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(encode(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(encode(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(encode(std::nextafter(middle, 1e9f)), code + 1) << code;
  }
}

TEST(E2m1, RoundsToNearestEvenAndSaturates) {
  check_rounding(7, encode_e2m1, decode_e2m1);
  EXPECT_EQ(encode_e2m1(1e30f), 7);
  EXPECT_EQ(encode_e2m1(-1e30f), 15);
  EXPECT_EQ(encode_e2m1(-0.0f), 8);
}

TEST(E4m3, EveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = decode_e4m3(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(encode_e4m3(value), code);
    }
  }
  EXPECT_EQ(decode_e4m3(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(decode_e4m3(0x7E), 448.0f);
}

TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  check_rounding(0x7E, encode_e4m3, decode_e4m3);
  EXPECT_EQ(encode_e4m3(1e30f), 0x7E);
  EXPECT_EQ(encode_e4m3(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(encode_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7F);
}

TEST(E8m0, EveryCode) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(decode_e8m0(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127));
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  EXPECT_EQ(encode_e8m0(-1000), 0);
  EXPECT_EQ(encode_e8m0(1000), 254);
}

TEST(Half, RoundTripsEveryCode) {
  for (int code = 0; code < 65536; ++code) {
    const auto half = static_cast<uint16_t>(code);
    if (!is_nan(decode_f16(half))) {
      EXPECT_EQ(encode_f16(decode_f16(half)), code);
    }
    if (!is_nan(decode_bf16(half))) {
      EXPECT_EQ(encode_bf16(decode_bf16(half)), code);
    }
  }
  EXPECT_EQ(encode_f16(65520.0f), 0x7C00);
  EXPECT_EQ(encode_f16(65519.0f), 0x7BFF);
}

TEST(Block, QuantisingADequantisedBlockIsExact) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 2000; ++trial) {
    uint8_t codes[kPackedBlock], again[kPackedBlock];
    for (auto& c : codes) c = static_cast<uint8_t>(rng() & 0xFF);
    codes[0] = static_cast<uint8_t>((codes[0] & 0xF0) | 6);  // amax 4 or 6, so the scale is determined
    const auto scale = static_cast<uint8_t>(rng() % 251 + 2);
    float x[kBlock], y[kBlock];
    dequantize_mxfp4(codes, scale, x);
    EXPECT_EQ(quantize_mxfp4(x, again), scale);
    dequantize_mxfp4(again, scale, y);
    for (int i = 0; i < kBlock; ++i) EXPECT_EQ(x[i], y[i]);
  }
}

TEST(Block, SpecialBlocks) {
  float x[kBlock] = {};
  uint8_t codes[kBlock];
  EXPECT_EQ(quantize_mxfp4(x, codes), 0);
  x[5] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(quantize_mxfp4(x, codes), kScaleNan);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(quantize_mxfp8(x, codes), kScaleNan);
  x[5] = std::numeric_limits<float>::max();
  EXPECT_EQ(quantize_mxfp8(x, codes), 127 + 127 - 7);
  EXPECT_EQ(decode_e4m3(codes[5]), 256.0f);
  x[5] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(quantize_mxfp4(x, codes), 0);
}

// No element of MXFP8 is cut: each is rounded by at most half a step.
TEST(Block, Mxfp8DoesNotSaturate) {
  constexpr int kLeastExponent = -6;  // E4M3's
  std::mt19937 rng(3);
  for (int trial = 0; trial < 2000; ++trial) {
    float x[kBlock], y[kBlock];
    uint8_t codes[kBlock];
    for (float& v : x) v = std::ldexp(static_cast<float>(rng() >> 8), static_cast<int>(rng() % 4) - 27);
    x[trial % kBlock] = -(1.0F + static_cast<float>(trial) / 2000) * 2;  // the largest
    const uint8_t scale = quantize_mxfp8(x, codes);
    EXPECT_EQ(scale, x[trial % kBlock] < -3.5F ? 121 : 120) << trial;
    dequantize_mxfp8(codes, scale, y);
    for (int i = 0; i < kBlock; ++i) {
      const int exponent = std::max(std::ilogb(x[i]), kLeastExponent + scale - 127);
      EXPECT_LE(std::abs(y[i] - x[i]), std::ldexp(1.0F, exponent - 4)) << x[i];
    }
  }
}

static_assert(encode_e2m1(2.5f) == 4 && encode_e4m3(1.0f) == 0x38 && decode_e8m0(128) == 2.0f);

}  // namespace
}  // namespace moesaic::mx
