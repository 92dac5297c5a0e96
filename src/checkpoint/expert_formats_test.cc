#include "checkpoint/expert_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "checkpoint/ggml_blocks.h"
#include "checkpoint/ggml_scale_test.h"
#include "mx/block.h"

namespace moesaic {
namespace {

// Q8_0 blocks with values at every kind of place: between codes, on half-way points, tiny, huge, zero.
std::string q8_blocks(int count) {
  std::mt19937 rng(4);
  std::string data;
  for (int b = 0; b < count; ++b) {
    const uint16_t scale = b == 0 ? 0 : mx::encode_f16(std::ldexp(1.0F, static_cast<int>(rng() % 28) - 24));
    data.append(reinterpret_cast<const char*>(&scale), 2);
    for (int i = 0; i < 32; ++i) data.push_back(static_cast<char>(rng() % (b % 3 == 0 ? 256 : 25)));
  }
  return data;
}

RawTensor tensor_of(const std::string& data, const std::string& dtype, int64_t elements) {
  return {.dtype = dtype, .shape = {1, 1, elements}, .data = std::as_bytes(std::span(data))};
}

std::vector<float> values_of(Format format, const std::byte* data, int64_t elements) {
  std::vector<float> values(static_cast<size_t>(elements));
  read_row(dense_view(format, 1, elements, data), 0, values);
  return values;
}

TEST(ExpertFormats, Mxfp4IsThatOfTheQuantiser) {
  constexpr int kBlocks = 3000;
  const std::string data = q8_blocks(kBlocks);
  const std::vector<float> values =
      values_of(Format::kQ8_0, reinterpret_cast<const std::byte*>(data.data()), kBlocks * 32);
  ThreadPool pool(2);
  const auto got = convert_blocks(tensor_of(data, "Q8_0", kBlocks * 32), Format::kMxfp4Gguf, pool);
  ASSERT_TRUE(got.ok());
  const std::vector<float> converted = values_of(Format::kMxfp4Gguf, got->as<>(), kBlocks * 32);
  for (int b = 0; b < kBlocks; ++b) {
    uint8_t packed[16];
    float want[32];
    const uint8_t scale = mx::quantize_mxfp4(values.data() + b * 32, packed);
    mx::dequantize_mxfp4(packed, scale, want);
    ASSERT_TRUE(std::equal(want, want + 32, converted.begin() + b * 32)) << b;
  }
}

// Every byte of Ollama's order has its place in ggml's; scales stay, NaN too.
TEST(ExpertFormats, PairedNibblesAreReordered) {
  std::string paired;
  for (int b = 0; b < 256; ++b) {
    paired.push_back(static_cast<char>(b));
    for (int j = 0; j < 16; ++j) paired.push_back(static_cast<char>((b * 7 + j * 29) & 255));
  }
  ThreadPool pool(2);
  const auto got = convert_blocks(tensor_of(paired, kPairedMxfp4, 256 * 32), Format::kMxfp4Gguf, pool);
  ASSERT_TRUE(got.ok());
  const auto* const out = got->as<uint8_t>();
  for (int b = 0; b < 256; ++b) {
    ASSERT_EQ(out[b * 17], b);
    for (int i = 0; i < 32; ++i) {
      const auto in = static_cast<uint8_t>(paired[b * 17 + 1 + i / 2]);
      const int want = i % 2 == 0 ? in & 15 : in >> 4;
      const int have = i < 16 ? out[b * 17 + 1 + i] & 15 : out[b * 17 + 1 + i - 16] >> 4;
      ASSERT_EQ(have, want) << b << " " << i;
    }
  }
  EXPECT_TRUE(converts_exactly(kPairedMxfp4, Format::kMxfp4Gguf));
  EXPECT_FALSE(converts_exactly("Q4_1", Format::kMxfp4Gguf));
}

// By hand: scales 1, 2, NaN's code (zero) and the smallest; codes 1 and 7 in the low and high nibbles.
TEST(ExpertFormats, Nvfp4AsGgmlHasIt) {
  std::string data = {0x38, 0x40, 0x7F, 0x01};
  data.append(32, 0x71);
  ThreadPool pool(1);
  const auto got = convert_blocks(tensor_of(data, "NVFP4", 64), Format::kQ8_0, pool);
  ASSERT_TRUE(got.ok());
  const std::vector<float> v = values_of(Format::kQ8_0, got->as<>(), 64);
  const float want[4][2] = {{0.5F, 6.0F}, {1.0F, 12.0F}, {0, 0}, {0.5F * 0x1p-9F, 6 * 0x1p-9F}};
  for (int i = 0; i < 64; ++i) {
    const float w = want[i / 16][i % 16 / 8];
    EXPECT_NEAR(v[i], w, (i < 32 ? 12.0F : 6 * 0x1p-9F) / 127) << i;
  }
}

TEST(ExpertFormats, WhatIsNotFiniteStaysSo) {
  ThreadPool pool(1);
  for (const GgmlBlocks& type : ggml_blocks()) {
    std::string data(static_cast<size_t>(type.bytes), '\1');
    constexpr uint16_t kInfinity = 0x7C00;
    put_scale(type.name, kInfinity, data);
    for (const Format to : {Format::kMxfp4Gguf, Format::kQ8_0}) {
      const auto got = convert_blocks(tensor_of(data, type.name, type.block), to, pool);
      ASSERT_TRUE(got.ok());
      const std::vector<float> v = values_of(to, got->as<>(), type.block);
      EXPECT_TRUE(std::ranges::any_of(v, [](float x) { return !std::isfinite(x); })) << type.name;
    }
  }
}

TEST(ExpertFormats, BitsDecide) {
  const std::pair<const char*, Format> kCases[] = {
      {"Q4_0", Format::kMxfp4Gguf},   {"Q4_1", Format::kMxfp4Gguf},  {"Q4_K", Format::kMxfp4Gguf},
      {"IQ4_NL", Format::kMxfp4Gguf}, {"NVFP4", Format::kMxfp4Gguf}, {"MXFP4", Format::kMxfp4Gguf},
      {"Q5_0", Format::kQ8_0},        {"Q5_1", Format::kQ8_0},       {"Q5_K", Format::kQ8_0},
      {"Q6_K", Format::kQ8_0},        {"Q8_0", Format::kQ8_0},       {"BF16", Format::kBF16}};
  for (const auto& [dtype, format] : kCases) EXPECT_EQ(expert_format(dtype), format) << dtype;
  EXPECT_EQ(expert_format("U8"), std::nullopt);
  EXPECT_EQ(common_format(Format::kMxfp4Gguf, Format::kQ8_0), Format::kQ8_0);
  EXPECT_EQ(common_format(Format::kMxfp4Gguf, Format::kBF16), std::nullopt);
}

}  // namespace
}  // namespace moesaic
