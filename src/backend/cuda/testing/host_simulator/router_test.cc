// The router's logits, against sums in double, and the same bits in every tile.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cuda/kernels/common/route.h"

namespace moesaic::cuda {
namespace {

struct Problem {
  int rows, hidden, experts;
  std::vector<float> x, weight, bias;

  Problem(int some_rows, int columns, int some_experts)
      : rows(some_rows), hidden(columns), experts(some_experts) {
    std::mt19937 random(rows * 7 + hidden + experts);
    std::normal_distribution<float> normal;
    for (auto& [values, count] :
         {std::pair(&x, rows * hidden), {&weight, experts * hidden}, {&bias, experts}}) {
      values->resize(count);
      for (float& v : *values) v = normal(random);
    }
  }
  // Runs rows first .. first + count - 1 together, and returns their logits.
  std::vector<float> logits(int first, int count) const {
    std::vector<float> out(static_cast<size_t>(count + 1) * experts, NAN);
    const Status status = router({.x = x.data() + static_cast<size_t>(first) * hidden,
                                  .weight = weight.data(),
                                  .bias = bias.data(),
                                  .logits = out.data(),
                                  .rows = count,
                                  .hidden = hidden,
                                  .experts = experts},
                                 nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    for (int e = 0; e < experts; ++e) EXPECT_TRUE(std::isnan(out[static_cast<size_t>(count) * experts + e]));
    out.resize(static_cast<size_t>(count) * experts);
    return out;
  }
};

TEST(RouterOnHost, LogitsOfOddShapes) {
  for (const auto& [rows, hidden, experts] : {std::array{129, 2880, 32},
                                              {161, 132, 33},
                                              {200, 64, 128},
                                              {130, 4, 7},
                                              {128, 260, 5},
                                              {9, 2880, 128},
                                              {3, 128, 32}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << hidden << ", " << experts << " experts");
    const Problem p(rows, hidden, experts);
    const std::vector<float> together = p.logits(0, rows);
    for (int row = 0; row < rows; ++row) {
      const std::vector<float> alone = p.logits(row, 1);
      for (int e = 0; e < experts; ++e) {
        double sum = p.bias[e], size = std::abs(sum);
        for (int i = 0; i < hidden; ++i) {
          const double product = static_cast<double>(p.x[row * hidden + i]) * p.weight[e * hidden + i];
          sum += product, size += std::abs(product);
        }
        const float logit = together[row * experts + e];
        ASSERT_NEAR(logit, sum, size * 1e-6) << row << ", " << e;
        ASSERT_EQ(logit, alone[e]) << row << ", " << e;
      }
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
