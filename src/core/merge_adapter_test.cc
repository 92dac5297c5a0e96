#include "core/merge_adapter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mx/formats.h"

namespace moesaic {
namespace {

constexpr int64_t kHidden = 64, kQ = 32, kKv = 16, kInter = 32, kExperts = 3, kRank = 32;

// Floats that stay where they are, with a view of them.
class Floats {
 public:
  MatrixView matrix(int64_t rows, int64_t cols) {
    std::vector<float>& v = all_.emplace_back(static_cast<size_t>(rows * cols));
    for (float& x : v) x = static_cast<float>(next_ = std::fmod(next_ * 7.31 + 0.173, 1.0)) - 0.5F;
    return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(v.data()));
  }
  ExpertsView experts(int64_t rows, int64_t cols) {
    const MatrixView all = matrix(kExperts * rows, cols);
    return {slice_rows(all, 0, rows), kExperts, rows * all.row_stride, 0};
  }

 private:
  std::vector<std::vector<float>> all_;
  double next_ = 0.5;
};

struct Adapted {
  Floats floats;
  LayerWeights w;
  LayerAdapter a;
  Adapted() {
    w.q = floats.matrix(kQ, kHidden), w.k = floats.matrix(kKv, kHidden), w.v = floats.matrix(kKv, kHidden);
    w.o = floats.matrix(kHidden, kQ);
    w.gate = floats.experts(kInter, kHidden), w.up = floats.experts(kInter, kHidden);
    w.down = floats.experts(kHidden, kInter);
    a.qkv = {floats.matrix(kRank, kHidden), floats.matrix(kQ + 2 * kKv, kRank)};
    a.o = {floats.matrix(kRank, kQ), floats.matrix(kHidden, kRank)};
    a.gate_up = {floats.experts(kRank, kHidden), floats.experts(2 * kInter, kRank)};
    a.down = {floats.experts(kRank, kInter), floats.experts(kHidden, kRank)};
  }
};

std::vector<float> row_of(const MatrixView& m, int64_t r) {
  std::vector<float> row(static_cast<size_t>(m.cols));
  read_row(m, r, row);
  return row;
}

// merged[r] is BF16 of w[r] + low.up[first + step * r] low.down.
void expect_merged(const MatrixView& merged, const MatrixView& w, const LowRank& low, int64_t first,
                   int64_t step) {
  ASSERT_EQ(merged.format, Format::kBF16);
  ASSERT_EQ(merged.rows, w.rows);
  for (int64_t r = 0; r < w.rows; ++r) {
    const std::vector<float> got = row_of(merged, r), before = row_of(w, r),
                             up = row_of(low.up, first + step * r);
    for (int64_t c = 0; c < w.cols; ++c) {
      double want = before[c];
      for (int64_t k = 0; k < kRank; ++k) want += double{up[k]} * row_of(low.down, k)[c];
      ASSERT_NEAR(got[c], want, 0x1p-8 * std::fabs(want) + 1e-6) << r << " " << c;
    }
  }
}

TEST(MergeAdapter, EveryMatrixHasItsOwnRowsOfTheAdapter) {
  const Adapted m;
  ThreadPool pool(2);
  const auto merged = merge_adapter(m.w, m.a, pool);
  ASSERT_TRUE(merged.ok());
  const LayerWeights& got = merged->weights;
  expect_merged(got.q, m.w.q, m.a.qkv, 0, 1);
  expect_merged(got.k, m.w.k, m.a.qkv, kQ, 1);
  expect_merged(got.v, m.w.v, m.a.qkv, kQ + kKv, 1);
  expect_merged(got.o, m.w.o, m.a.o, 0, 1);
  for (int64_t e = 0; e < kExperts; ++e) {
    expect_merged(got.gate.at(e), m.w.gate.at(e), m.a.gate_up.at(e), 0, 2);
    expect_merged(got.up.at(e), m.w.up.at(e), m.a.gate_up.at(e), 1, 2);
    expect_merged(got.down.at(e), m.w.down.at(e), m.a.down.at(e), 0, 1);
  }
}

// Counts before loading are those of loading; matrices that no adapter reaches stay where they are.
TEST(MergeAdapter, CountedAsItWillBe) {
  Adapted m;
  m.a.o = {}, m.a.down = {};
  ThreadPool pool(1);
  const auto merged = merge_adapter(m.w, m.a, pool);
  ASSERT_TRUE(merged.ok());
  const LayerWeights counted = merged_formats(m.w, m.a);
  const auto same = [](const MatrixView& x, const MatrixView& y) {
    return x.format == y.format && x.rows == y.rows && x.cols == y.cols && x.row_stride == y.row_stride;
  };
  EXPECT_TRUE(same(counted.q, merged->weights.q) && same(counted.o, merged->weights.o));
  EXPECT_TRUE(same(counted.gate.first, merged->weights.gate.first));
  EXPECT_EQ(counted.gate.data_stride, merged->weights.gate.data_stride);
  EXPECT_EQ(merged->weights.o.data, m.w.o.data);
  EXPECT_EQ(merged->weights.down.first.data, m.w.down.first.data);
  EXPECT_EQ(counted.down.first.format, Format::kF32);
}

}  // namespace
}  // namespace moesaic
