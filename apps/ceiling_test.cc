#include "ceiling.h"

#include <gtest/gtest.h>

namespace moesaic::app {
namespace {

TEST(Roofline, IsTheSumOfWhatBoundsEachOp) {
  const std::vector<OpProfile> ops = {{.op = "qkv", .bytes = 100, .flops = 10},    // 1 s, 0.01 s
                                      {.op = "moe", .bytes = 100, .flops = 8000},  // 1 s, 4 s
                                      {.op = "attend", .bytes = 50, .flops = 3000}};
  const BackendCaps caps{.peak_flops = 1000, .experts_flops = 2000}, unknown;
  EXPECT_DOUBLE_EQ(roofline_of(ops, 100, caps).seconds, 1 + 4 + 3);
  EXPECT_TRUE(roofline_of(ops, 100, caps).by_flops);
  EXPECT_DOUBLE_EQ(roofline_of(ops, 100, unknown).seconds, 2.5);
  EXPECT_FALSE(roofline_of(ops, 100, unknown).by_flops);
  EXPECT_DOUBLE_EQ(roofline_of(ops, 1, caps).seconds, 250);
  EXPECT_FALSE(roofline_of(ops, 1, caps).by_flops);
}

}  // namespace
}  // namespace moesaic::app
