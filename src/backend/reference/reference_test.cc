#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <random>

#include "backend/reference/attention.h"
#include "backend/reference/experts.h"
#include "backend/reference/layer_ops.h"
#include "backend/reference/linear.h"
#include "backend/reference/reference_backend.h"

namespace moesaic {
namespace {

std::vector<float> random_vector(size_t size, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(size);
  for (float& v : x) v = normal(rng);
  return x;
}

TEST(Reference, DotOfEverySize) {
  for (size_t size = 0; size < 40; ++size) {
    const auto a = random_vector(size, 1), b = random_vector(size, 2);
    long double sum = 0;
    for (size_t i = 0; i < size; ++i) sum += static_cast<long double>(a[i]) * b[i];
    EXPECT_NEAR(reference::dot(a, b), static_cast<double>(sum), 1e-13);
  }
}

// A pair (x1, x2) is a complex number that RoPE turns by position * frequency.
TEST(Reference, RotationIsAComplexProduct) {
  const int dim = 8;
  const RopeTable table = make_rope_table({}, dim);
  const auto x = random_vector(3 * dim, 3);
  auto y = x;
  reference::rotate(table, 1234, dim, y);
  for (size_t head = 0; head < x.size(); head += dim) {
    for (size_t i = 0; i < dim / 2; ++i) {
      const std::complex<double> turned =
          std::complex<double>(x[head + i], x[head + 4 + i]) *
          std::polar(table.attention_factor, 1234 * table.inverse_frequency[i]);
      EXPECT_NEAR(y[head + i], turned.real(), 1e-6);
      EXPECT_NEAR(y[head + 4 + i], turned.imag(), 1e-6);
    }
  }
}

// With all keys zero every score is 0: the output is the sum of the values over (count + exp(sink)).
TEST(Reference, TheSinkOnlyDilutes) {
  const int dim = 4;
  const reference::LayerCache cache = reference::make_cache({.kv_heads = 2, .head_dim = dim}, 2, 2).value();
  std::ranges::copy(random_vector(4 * 2 * dim, 4), cache.values().begin());
  const std::vector<int32_t> pages = {1, 0};
  const std::vector<float> q = random_vector(4 * dim, 5), sinks = {0.5f, -1.0f, 2.0f, -100.0f};
  std::vector<float> out(q.size());
  reference::attend_row({4, 2, dim, 1, 3}, q, sinks, cache, pages, out);
  for (size_t h = 0; h < 4; ++h) {
    for (size_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (const size_t slot : {3u, 0u, 1u}) sum += cache.values()[slot * 2 * dim + h / 2 * dim + i];
      EXPECT_NEAR(out[h * dim + i], sum / (3 + std::exp(double{sinks[h]})), 1e-6);
    }
  }
}

TEST(Reference, SwigluClampsGateFromAboveAndUpFromBothSides) {
  EXPECT_EQ(reference::swiglu(9, 0, 1.702, 7), reference::swiglu(7, 0, 1.702, 7));
  EXPECT_NE(reference::swiglu(-9, 0, 1.702, 7), reference::swiglu(-7, 0, 1.702, 7));
  EXPECT_EQ(reference::swiglu(1, -9, 1.702, 7), reference::swiglu(1, -7, 1.702, 7));
  EXPECT_NEAR(reference::swiglu(2, 3, 1.702, 7), 2 / (1 + std::exp(-1.702 * 2)) * 4, 1e-6);
  EXPECT_TRUE(std::isnan(reference::swiglu(NAN, 0, 1.702, 7)));
  EXPECT_TRUE(std::isnan(reference::swiglu(0, NAN, 1.702, 7)));
}

TEST(Reference, ErrorsBeforeLoad) {
  auto backend = create_reference_backend({});
  ASSERT_TRUE(backend.ok());
  EXPECT_FALSE(backend.value()->begin_step({}).ok());
  EXPECT_FALSE(backend.value()->alloc_kv({}).ok());
  EXPECT_FALSE(create_reference_backend({.max_rows = 0}).ok());
}

}  // namespace
}  // namespace moesaic
