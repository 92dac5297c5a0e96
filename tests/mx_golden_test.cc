// The MX codecs against ml_dtypes (tools/golden/make_mx_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "mx/block.h"
#include "mx/formats.h"

namespace moesaic {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  template <typename T>
  std::vector<T> take(size_t count) {
    std::vector<T> values(count);
    EXPECT_LE(at_ + count * sizeof(T), bytes_.size());
    if (at_ + count * sizeof(T) <= bytes_.size())
      std::memcpy(values.data(), bytes_.data() + at_, count * sizeof(T));
    at_ += count * sizeof(T);
    return values;
  }
  bool done() const { return at_ == bytes_.size(); }

 private:
  std::vector<char> bytes_;
  size_t at_ = 0;
};

struct MxGolden {
  std::vector<float> e2m1, e4m3, e8m0;  // values of the codes
  std::vector<float> x;
  std::vector<uint8_t> e2m1_codes, e4m3_codes, e8m0_codes;  // codes of x
};

MxGolden load() {
  Reader r(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/mx.bin");
  MxGolden g;
  g.e2m1 = r.take<float>(16), g.e4m3 = r.take<float>(256), g.e8m0 = r.take<float>(256);
  const size_t n = r.take<uint32_t>(1)[0];
  g.x = r.take<float>(n);
  g.e2m1_codes = r.take<uint8_t>(n), g.e4m3_codes = r.take<uint8_t>(n), g.e8m0_codes = r.take<uint8_t>(n);
  EXPECT_TRUE(r.done());
  EXPECT_GT(n, 3000u);
  return g;
}

// Equal in every bit, a NaN for any NaN.
void expect_same(float got, float want, int code) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << code;
  } else {
    EXPECT_EQ(mx::float_bits(got), mx::float_bits(want)) << code;
  }
}

TEST(MxGolden, EveryCodeDecodes) {
  const MxGolden g = load();
  for (int code = 0; code < 16; ++code)
    expect_same(mx::decode_e2m1(static_cast<uint8_t>(code)), g.e2m1[static_cast<size_t>(code)], code);
  for (int code = 0; code < 256; ++code) {
    expect_same(mx::decode_e4m3(static_cast<uint8_t>(code)), g.e4m3[static_cast<size_t>(code)], code);
    expect_same(mx::decode_e8m0(static_cast<uint8_t>(code)), g.e8m0[static_cast<size_t>(code)], code);
  }
}

TEST(MxGolden, RandomNumbersTiesAndEdgesRound) {
  const MxGolden g = load();
  for (size_t i = 0; i < g.x.size(); ++i) {
    EXPECT_EQ(mx::encode_e2m1(g.x[i]), g.e2m1_codes[i]) << g.x[i];
    EXPECT_EQ(mx::encode_e4m3(g.x[i]), g.e4m3_codes[i]) << g.x[i];
  }
}

// A scale is a power of two: 2^floor(log2 |x|) is what block_scale gives for emax = 0.
TEST(MxGolden, ScalesOfRandomNumbers) {
  const MxGolden g = load();
  for (size_t i = 0; i < g.x.size(); ++i)
    EXPECT_EQ(mx::block_scale(std::abs(g.x[i]), 0), g.e8m0_codes[i]) << g.x[i];
}

}  // namespace
}  // namespace moesaic
