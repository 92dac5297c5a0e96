#include "tuning/projection.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

const ProjectedOp& op_of(const std::vector<ProjectedOp>& ops, std::string_view name) {
  for (const ProjectedOp& op : ops) {
    if (op.name == name) return op;
  }
  ADD_FAILURE() << name;
  return ops.front();
}
std::vector<ProjectedOp> ops_of(const char* model, Format dense, int tokens) {
  return decode_ops(published_config(model).value(), {.dense = dense, .head = dense}, tokens);
}

// By hand: an expert is 3 * 2880 * 2880 elements of 4.25 bits, 13,219,200 bytes; the router F32.
TEST(Projection, BytesOfOneTokenByHand) {
  const auto ops = ops_of("gpt-oss-120b", Format::kMxfp8, 1);
  EXPECT_DOUBLE_EQ(op_of(ops, "qkv").bytes, 15206400);
  EXPECT_DOUBLE_EQ(op_of(ops, "project").bytes, 12165120);
  EXPECT_NEAR(op_of(ops, "moe").bytes, 4 * 13219200 + 128 * 2880 * 4, 1);
  EXPECT_DOUBLE_EQ(op_of(ops, "unembed").bytes, 597231360);
  double all = 0;
  for (const ProjectedOp& op : ops) all += op.calls * op.bytes;
  EXPECT_NEAR(all, 36.0 * (15206400 + 12165120 + 52876800 + 1474560) + 597231360, 100);
  EXPECT_DOUBLE_EQ(op_of(ops_of("gpt-oss-20b", Format::kMxfp4, 1), "unembed").bytes, 307664640);
  EXPECT_DOUBLE_EQ(op_of(ops_of("gpt-oss-20b", Format::kBF16, 1), "qkv").bytes, 29491200);
}

// Four experts are 4 * 270 weight tiles of 22.5 quads.
TEST(Projection, InstructionsOfOneTokenByHand) {
  const auto ops = ops_of("gpt-oss-120b", Format::kMxfp8, 1);
  EXPECT_NEAR(op_of(ops, "moe").instructions, 24300.0 * 161, 1);
  EXPECT_NEAR(op_of(ops, "moe").mmas, 24300.0 * 8, 1e-2);
  EXPECT_DOUBLE_EQ(op_of(ops, "qkv").instructions, 160 * 22.5 * 111);
  EXPECT_EQ(op_of(ops_of("gpt-oss-120b", Format::kBF16, 1), "qkv").instructions, 0);
  EXPECT_DOUBLE_EQ(op_of(ops_of("gpt-oss-120b", Format::kMxfp4, 9), "qkv").mmas, 160 * 22.5 * 16);
}

TEST(Projection, TheLongestOfThreeCounts) {
  const DeviceModel d{.bytes_per_second = 100, .fp8_flops = 8192, .multiprocessors = 2, .clock = 10};
  const ProjectedTime t = projected_time({.bytes = 640, .instructions = 160, .mmas = 5}, d);
  EXPECT_DOUBLE_EQ(t.memory, 6.4);
  EXPECT_DOUBLE_EQ(t.issue, 2);
  EXPECT_DOUBLE_EQ(t.mma, 5);
  EXPECT_DOUBLE_EQ(t.floor(), 6.4);
  EXPECT_DOUBLE_EQ(as_on_hopper({.bytes = 640, .instructions = 160, .mmas = 5, .start = 1, .share = 0.64}, d),
                   11);
  EXPECT_EQ(find_device_model("h100"), nullptr);
  for (const DeviceModel& device : device_models()) EXPECT_EQ(find_device_model(device.name), &device);
}

}  // namespace
}  // namespace moesaic
