// Attention of prompts by wgmma on the host: against a loop in double, and bit for bit whatever the chunk.
#define attend_prefill attend_prefill_on_host
#include "backend/cuda/kernels/sm90/attention_prefill.cu"
#undef attend_prefill

#include <gtest/gtest.h>

#include "backend/cuda/testing/attention_problem.h"

namespace moesaic::cuda {
namespace {

alignas(1024) thread_local uint8_t memory[sizeof(PrefillShared<128, true>)];  // the kernel's

// The problem's rows in tiles of at most `most`. A CTA's threads must all end.
std::vector<uint16_t> run(const Problem& p, int most, bool bf16 = true) {
  const Uploaded uploaded(p, most);
  const Attention attention = uploaded.attention(bf16);
  const Status status = for_shape(attention, [&](auto d, auto fp8) {
    static_assert(sizeof(PrefillShared<d, fp8>) <= sizeof(memory));
    const dim3 grid(attention.tile_count, attention.kv_heads);
    return on_host::run_in_turn(grid, PrefillCta<d>::kThreads, memory,
                                [&] { attention_prefill_kernel<d, fp8>(attention); })
               ? Status()
               : Status(StatusCode::kInternal, "threads wait forever");
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return uploaded.out();
}

void check(const Case& c, bool bf16 = true) {
  std::mt19937 rng(7);
  const Problem p(c, rng);
  const int most = tile_tokens(c.heads, c.kv_heads, prefill_groups(c.head_dim));
  const std::vector<uint16_t> whole = run(p, most, bf16);
  p.compare(whole, bf16, "prefill");
  EXPECT_EQ(run(p, std::max(1, most - 3), bf16), whole);
}

// One block of keys, several, and several spans.
TEST(PrefillAttention, AllKeys) {
  check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {17, 127, 128, 129, 300}, .rows = 17});
  check({.head_dim = 64, .heads = 8, .kv_heads = 2, .tokens = {1030, 2100}, .rows = 19}, false);
}

// Later blocks exceed the shift of the first by up to a hundred binary orders, or stay far below it.
TEST(PrefillAttention, ScoresThatGrow) {
  for (const float growth : {0.001F, 0.02F, 0.3F, -0.0004F}) {
    for (const bool fp8 : {false, true})
      check({.head_dim = 64,
             .heads = 8,
             .kv_heads = 1,
             .fp8 = fp8,
             .window = fp8 ? 300 : 0,
             .tokens = {150, 1300, 2100},
             .rows = 40,
             .growth = growth});
  }
  check({.head_dim = 128, .heads = 8, .kv_heads = 1, .tokens = {1300}, .rows = 20, .growth = 0.02F});
}

// The warp that loads is the late one of CTA 8.
TEST(PrefillAttention, KeysThatComeLate) {
  for (const bool fp8 : {false, true})
    check({.head_dim = 64, .heads = 8, .kv_heads = 1, .fp8 = fp8, .tokens = {1500}, .rows = 160});
}

TEST(PrefillAttention, Windows) {
  for (const int window : {1, 50, 128, 300})
    check(
        {.head_dim = 64, .heads = 8, .kv_heads = 1, .window = window, .tokens = {40, 600, 1290}, .rows = 37});
}

// The first rows of a tile end in one block, the others in the next.
TEST(PrefillAttention, TilesAcrossBlocks) {
  for (const int tokens : {1030, 1032, 1034, 1038})
    check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {tokens}, .rows = 16});
}

TEST(PrefillAttention, OtherShapes) {
  for (const int head_dim : {32, 64, 128}) {
    for (const bool fp8 : {false, true}) {
      check({.head_dim = head_dim, .heads = 16, .kv_heads = 1, .fp8 = fp8, .tokens = {700}, .rows = 11});
      check({.head_dim = head_dim,
             .heads = 6,
             .kv_heads = 2,
             .fp8 = fp8,
             .window = 70,
             .tokens = {333},
             .rows = 45});
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
