// A NaN or an infinity is found in every format, and no quantiser makes a number of one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "core/q8_0.h"
#include "core/weights.h"

namespace moesaic {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

TEST(Quantisers, MarkABlockThatIsNotFinite) {
  for (const float bad : {kNan, -kNan, kInf, -kInf}) {
    for (int at = 0; at < mx::kBlock; ++at) {
      float x[mx::kBlock];
      for (int i = 0; i < mx::kBlock; ++i) x[i] = static_cast<float>(i - 16);
      x[at] = bad;
      int8_t q[mx::kBlock];
      uint8_t codes[mx::kBlock];
      EXPECT_TRUE(std::isnan(mx::decode_f16(quantize_q8_0(x, q)))) << at;
      EXPECT_EQ(mx::quantize_mxfp4(x, codes), mx::kScaleNan) << at;
      EXPECT_EQ(mx::quantize_mxfp8(x, codes), mx::kScaleNan) << at;
    }
  }
}

TEST(Quantisers, Q8AboveItsRangeIsInfinite) {
  float x[mx::kBlock] = {3e38F, 1};
  int8_t q[mx::kBlock];
  EXPECT_TRUE(std::isinf(mx::decode_f16(quantize_q8_0(x, q))));
  x[0] = 65504.0F * 127;
  EXPECT_EQ(mx::decode_f16(quantize_q8_0(x, q)), 65504);
  EXPECT_EQ(q[0], 127);
}

// A matrix of ones in any format, of which a test damages single bytes.
struct Ones {
  Format format;
  std::vector<std::byte> data, scales;
  MatrixView view;

  Ones(Format f, int64_t rows, int64_t cols)
      : format(f),
        data(static_cast<size_t>(rows * row_bytes(f, cols))),
        scales(rows * cols / 32, std::byte{127}) {
    const float one = 1;
    const uint16_t f16 = mx::encode_f16(one), bf16 = mx::encode_bf16(one);
    for (size_t i = 0; i < data.size(); i += step()) {
      if (f == Format::kF32) std::memcpy(&data[i], &one, 4);
      if (f == Format::kF16 || f == Format::kQ8_0) std::memcpy(&data[i], &f16, 2);
      if (f == Format::kBF16) std::memcpy(&data[i], &bf16, 2);
      if (f == Format::kMxfp4Gguf) data[i] = std::byte{127};
    }
    const bool apart = info_of(f).scale_bytes > 0;
    view = dense_view(f, rows, cols, data.data(), apart ? scales.data() : nullptr);
  }
  size_t step() const { return static_cast<size_t>(row_bytes(format, is_plain(format) ? 1 : 32)); }
};

TEST(RowIsFinite, InEveryFormatAtEveryPlace) {
  for (const FormatInfo& info : formats()) {
    SCOPED_TRACE(info.name);
    Ones m(info.format, 3, 96);
    for (int64_t r = 0; r < 3; ++r) EXPECT_TRUE(row_is_finite(m.view, r));
    const bool apart = m.view.scales != nullptr;
    std::vector<std::byte>& marks = apart ? m.scales : m.data;
    const size_t step = apart ? 1 : m.step(), row = marks.size() / 3;
    const bool bytes = apart || info.format == Format::kMxfp4Gguf;
    for (size_t at = 0; at < marks.size(); at += step) {
      const std::vector<std::byte> before = marks;
      std::memset(&marks[at], 0xFF, bytes ? 1 : info.format == Format::kF32 ? 4 : 2);
      for (size_t r = 0; r < 3; ++r)
        EXPECT_EQ(row_is_finite(m.view, static_cast<int64_t>(r)), at / row != r) << at;
      marks = before;
    }
  }
}

TEST(RowIsFinite, InfinityAndLargestNumbers) {
  Ones m(Format::kF32, 1, 32);
  const auto with = [&](float v) {
    std::memcpy(m.data.data() + 12, &v, 4);
    return row_is_finite(m.view, 0);
  };
  EXPECT_FALSE(with(kInf));
  EXPECT_FALSE(with(-kInf));
  EXPECT_TRUE(with(std::numeric_limits<float>::max()));
  EXPECT_TRUE(with(-std::numeric_limits<float>::max()));
  Ones codes(Format::kMxfp8, 1, 32);
  codes.data[5] = std::byte{0xFF};
  EXPECT_FALSE(row_is_finite(codes.view, 0));
}

TEST(RowIsFinite, AcrossATransposedMatrix) {
  std::vector<float> values(32 * 4, 1.0F);
  values[7 * 4 + 2] = kNan;  // element (2, 7)
  const MatrixView m{.format = Format::kF32,
                     .rows = 4,
                     .cols = 32,
                     .data = reinterpret_cast<const std::byte*>(values.data()),
                     .row_stride = 4,
                     .col_stride = 16};
  for (int r = 0; r < 4; ++r) EXPECT_EQ(row_is_finite(m, r), r != 2);
}

TEST(CheckFinite, NamesTheFirstRow) {
  Ones m(Format::kBF16, 5000, 32);
  ThreadPool pool(3);
  EXPECT_TRUE(check_finite(m.view, "table", pool).ok());
  for (const size_t row : {4711U, 600U}) std::memset(&m.data[row * 64 + 6], 0xFF, 2);
  EXPECT_NE(check_finite(m.view, "table", pool).message().find("table row 600:"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
