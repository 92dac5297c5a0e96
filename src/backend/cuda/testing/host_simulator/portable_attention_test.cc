// Attention by mma.sync on the host, its pages copied by cp.async as before compute capability 9.0: against a
// loop in double, and bit for bit whatever the batch, the chunk or the CTA that has a span.
#define attend_portable attend_portable_on_host
#include "backend/cuda/kernels/common/attention_portable.cu"
#undef attend_portable

#include <gtest/gtest.h>

#include "backend/cuda/kernels/ptx/e4m3.cuh"
#include "backend/cuda/testing/attention_problem.h"

namespace moesaic::cuda {
namespace {

alignas(128) thread_local uint8_t portable_memory[portable_shared_bytes(128, false)];  // the kernel's
const bool given = [] { return on_host::shared_memory = portable_memory, true; }();

constexpr int kFloats = 1 << 20;

// The problem's rows in tiles of at most `most`. divided: with room for what spans leave.
std::vector<uint16_t> run(const Problem& p, int most, bool divided, bool bf16 = true, int floats = kFloats) {
  const Uploaded uploaded(p, most);
  const DeviceBuffer left = sm120::poisoned(size_t{kFloats} * sizeof(float));
  std::vector<int> arrivals(kMostSpanGroups);
  SpanScratch scratch;
  if (divided)
    scratch = {.left = left.as<float>(),
               .floats = floats,
               .rows = static_cast<int>(p.at.size()),
               .arrivals = arrivals.data()};
  const Status status = attend_portable_on_host(uploaded.attention(bf16), scratch, nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(std::ranges::all_of(arrivals, [](int n) { return n == 0; }));
  return uploaded.out();
}

// The result is right, and the same bits come of every way to compute the rows.
void check(const Case& c, bool bf16 = true) {
  std::mt19937 rng(7);
  const Problem p(c, rng);
  const std::vector<uint16_t> alone = run(p, 1, false, bf16);
  p.compare(alone, bf16, "portable");
  EXPECT_EQ(run(p, 1, true, bf16), alone);
  EXPECT_EQ(run(p, tile_tokens(c.heads, c.kv_heads), false, bf16), alone);
  EXPECT_EQ(run(p, tile_tokens(c.heads, c.kv_heads), true, bf16), alone);
}

TEST(PortableAttention, SingleRowsOfEveryLength) {
  // Within a page, at its end, in one span, at its end, one more, and several spans.
  check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {1, 31, 32, 33, 255, 256, 257, 1100}});
  check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {700}}, false);
}

TEST(PortableAttention, Windows) {
  for (const int window : {1, 50, 128})
    check({.head_dim = 64, .heads = 4, .kv_heads = 2, .window = window, .tokens = {40, 600}, .rows = 20});
}

TEST(PortableAttention, Prompts) {
  check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {300, 530}, .rows = 20});
  check({.head_dim = 32, .heads = 3, .kv_heads = 1, .tokens = {290}, .rows = 50});
}

TEST(PortableAttention, OtherShapes) {
  for (const int head_dim : {32, 64, 128}) {
    for (const bool fp8 : {false, true})
      check({.head_dim = head_dim, .heads = 16, .kv_heads = 1, .fp8 = fp8, .tokens = {40, 333}});
  }
}

// Rows whose spans have no room are computed by one CTA each, beside others whose have.
TEST(PortableAttention, WithoutRoomForSpans) {
  std::mt19937 rng(3);
  const Problem p({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {1500, 300}}, rng);
  const std::vector<uint16_t> alone = run(p, 1, false);
  const int of_span = 2 * 8 * (64 + 2);
  for (const int slots : {0, 1, 2, 5, 6}) EXPECT_EQ(run(p, 1, true, true, slots * of_span), alone) << slots;
}

// Below compute capability 8.9 MXFP8 weights are widened by these bit operations.
TEST(E4m3, BecomesF16Exactly) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;  // NaN
    const uint2 v = e4m3_to_f16(code | (code ^ 0x80) << 8 | code << 16 | code << 24);
    const float want = mx::decode_e4m3(static_cast<uint8_t>(code));
    EXPECT_EQ(mx::decode_f16(static_cast<uint16_t>(v.x)), want);
    EXPECT_EQ(mx::decode_f16(static_cast<uint16_t>(v.x >> 16)), -want);
    EXPECT_EQ(mx::decode_f16(static_cast<uint16_t>(v.y)), want);
    EXPECT_EQ(mx::decode_f16(static_cast<uint16_t>(v.y >> 16)), want);
  }
}

}  // namespace
}  // namespace moesaic::cuda
