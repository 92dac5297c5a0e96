// Properties of every row of formats() that readers, writers and backends take for granted.
#include "core/format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/weights.h"
#include "mx/formats.h"

namespace moesaic {
namespace {

constexpr int64_t kCols = 3 * mx::kBlock;

std::vector<float> normal(std::mt19937& rng) {
  std::normal_distribution<float> distribution(0, 0.7F);
  std::vector<float> x(kCols);
  for (float& v : x) v = distribution(rng);
  return x;
}

TEST(Formats, KeepWhatTheyHaveRoundedOnce) {
  std::mt19937 rng(3);
  for (const FormatInfo& f : formats()) {
    const std::vector<float> x = normal(rng);
    std::vector<float> once = x;
    round_to(f.format, once);
    const float top = std::fabs(*std::ranges::max_element(x, {}, [](float v) { return std::fabs(v); }));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(once[i], x[i], top / (f.bits() < 8 ? 4 : 8)) << f.name;
      EXPECT_TRUE(!f.fits_bf16 || mx::decode_bf16(mx::encode_bf16(once[i])) == once[i]) << f.name;
    }
    std::vector<float> twice = once;
    round_to(f.format, twice);
    EXPECT_EQ(twice, once) << f.name;
  }
}

TEST(Formats, AreFoundByTheTypesOfFiles) {
  for (const FormatInfo& f : formats()) {
    EXPECT_TRUE(f.safetensors.empty() || stored_format(f.safetensors) == f.format) << f.name;
    EXPECT_TRUE(f.gguf < 0 || stored_format(f.name) == f.format) << f.name;
  }
  EXPECT_EQ(stored_format("U8"), std::nullopt);
  EXPECT_EQ(stored_format(""), std::nullopt);
}

// Matrices in every format, as rows of every other one.
TEST(ConvertRow, IsTheRoundingOfTheRow) {
  std::mt19937 rng(5);
  for (const FormatInfo& from : formats()) {
    const std::vector<float> x = normal(rng);
    std::vector<std::byte> data(static_cast<size_t>(row_bytes(from.format, kCols))),
        scales(static_cast<size_t>(row_scale_bytes(from.format, kCols)));
    from.encode(x.data(), kCols / from.block, data.data(), scales.data());
    const MatrixView m = dense_view(from.format, 1, kCols, data.data(), scales.data());
    std::vector<float> want(kCols), got(kCols), scratch(kCols);
    for (const FormatInfo& to : formats()) {
      std::vector<std::byte> out(static_cast<size_t>(row_bytes(to.format, kCols))),
          out_scales(static_cast<size_t>(row_scale_bytes(to.format, kCols)));
      convert_row(m, 0, to.format, scratch, out.data(), out_scales.data());
      read_row(m, 0, want);
      round_to(to.format, want);
      read_row(dense_view(to.format, 1, kCols, out.data(), out_scales.data()), 0, got);
      EXPECT_EQ(got, want) << from.name << " to " << to.name;
    }
  }
}

// A scale that a quantiser would not choose goes through, there and back.
TEST(ConvertRow, TakesMxfp4BitForBitBetweenItsOrders) {
  std::mt19937 rng(7);
  std::vector<std::byte> codes(kCols / 2), scales(kCols / mx::kBlock), back(codes.size()),
      back_scales(scales.size());
  for (std::byte& b : codes) b = static_cast<std::byte>(rng() & 0x11U);  // 0 and a half, of either place
  for (std::byte& b : scales) b = static_cast<std::byte>(90 + rng() % 90);
  std::vector<std::byte> gguf(static_cast<size_t>(row_bytes(Format::kMxfp4Gguf, kCols)));
  convert_row(dense_view(Format::kMxfp4, 1, kCols, codes.data(), scales.data()), 0, Format::kMxfp4Gguf, {},
              gguf.data(), nullptr);
  convert_row(dense_view(Format::kMxfp4Gguf, 1, kCols, gguf.data()), 0, Format::kMxfp4, {}, back.data(),
              back_scales.data());
  EXPECT_EQ(back, codes);
  EXPECT_EQ(back_scales, scales);
}

}  // namespace
}  // namespace moesaic
