// Whole models whose experts, and dense matrices in MXFP8, go through kernels/sm120/, its one instruction
// emulated as on Hopper, against the reference with the same rounding.
#include <gtest/gtest.h>

#include "backend/cuda/testing/host_simulator/small_model.h"
#include "backend/reference/reference_backend.h"

namespace moesaic::cuda {
namespace {

// Prompts and sequences that decode, so that experts get 0 to 32 rows.
const std::vector<std::vector<int>> kSteps = {{8}, {1}, {8, 7, 5}, {1, 1, 1, 1}, {8, 8, 8, 8}};

std::vector<std::vector<float>> all_steps(const Model::Form& form) {
  Model model(form);
  std::vector<std::vector<float>> logits;
  for (const auto& rows : kSteps) logits.push_back(model.step(rows));
  EXPECT_EQ(model.status().message(), "");
  return logits;
}
double error(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& want) {
  RelativeError error;
  for (size_t i = 0; i < want.size(); ++i) {
    for (size_t at = 0; at < want[i].size(); ++at) error.add(got[i][at], want[i][at]);
  }
  return error.value();
}

class Quads : public testing::TestWithParam<std::optional<Format>> {};

TEST_P(Quads, RoundAsTheReferenceDoes) {
  const Model::Form exact{.dense = GetParam(), .make = create_reference_backend};
  const auto want = all_steps(exact);
  const auto errors_of = [&](MoePath path) {
    Model::Form form{.path = path, .dense = GetParam()};
    const auto got = all_steps(form);
    form.make = create_reference_backend;
    return std::pair(error(got, all_steps(form)), error(got, want));
  };
  const auto [one, one_from_exact] = errors_of(MoePath::kW4A8);
  const auto [two, two_from_exact] = errors_of(MoePath::kW4A8x2);
  // A sum in another order may bring an activation to the next of its codes, one in 16 of its size.
  EXPECT_LT(one, 0.06);
  EXPECT_LT(two, 0.005);
  EXPECT_GT(one_from_exact, 0.015);
  EXPECT_LT(two_from_exact, 0.01);
}
INSTANTIATE_TEST_SUITE_P(Dense, Quads,
                         testing::Values(std::optional<Format>(), std::optional(Format::kMxfp8)));

// A row's bits do not depend on the other rows, which decide the tiles.
TEST(QuadsTest, HaveOneOrderOfSums) {
  for (const MoePath path : {MoePath::kW4A8, MoePath::kW4A8x2}) {
    const Model::Form form{.path = path, .dense = Format::kMxfp8};
    Model alone(form), beside(form);
    const std::vector<float> want = alone.step({3});
    std::vector<float> got = beside.step({3, 8, 8, 8});
    ASSERT_EQ(beside.status().message(), "");
    got.resize(want.size());
    EXPECT_EQ(got, want);
  }
}

}  // namespace
}  // namespace moesaic::cuda
