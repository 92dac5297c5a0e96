// Every attention kernel against a loop in double, on a device. Where spans are divided among CTAs the bits
// are the same.
#include "backend/cuda/ops/attention.h"

#include <gtest/gtest.h>

#include "backend/cuda/ops/select.h"
#include "backend/cuda/testing/attention_problem.h"

namespace moesaic::cuda {
namespace {

class AttentionTest : public sm120::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    const Result<Features> features = features_of_device(0);
    ASSERT_TRUE(features.ok()) << features.status().message();
    targets_ = {target_of(features.value(), {}), target_of(features.value(), {.portable = true}),
                target_of(features.value(), {.batch_invariant = true})};
  }

  void check(const Case& c) {
    Problem p(c, rng_);
    for (const Target& target : targets_) {
      for (const bool bf16 : {true, false}) check(p, target, bf16);
    }
  }

  void check(const Problem& p, const Target& target, bool bf16) {
    const Case& c = p.c;
    // A batch-invariant target takes single rows as it takes prompts.
    const bool decode = c.rows == 1 && !target.batch_invariant;
    const Uploaded uploaded(p, decode ? 1 : tile_tokens(c.heads, c.kv_heads, c.head_dim, target));
    Attention a = uploaded.attention(bf16);
    a.kv_splits = kv_splits_of((*std::ranges::max_element(c.tokens) + kPageTokens - 1) / kPageTokens);
    const auto run = [&](const SpanScratch& scratch) {
      const Status status = attend(a, decode, target, scratch, nullptr);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      return uploaded.out();
    };
    const std::vector<uint16_t> got = run({});
    p.compare(got, bf16, target.portable ? "portable" : decode ? "decode" : "prefill");
    if (!target.portable) return;
    const DeviceBuffer left = sm120::poisoned(kSpanFloats * sizeof(float)),
                       arrivals = DeviceBuffer::allocate(kMostSpanGroups * sizeof(int), "test").value();
    for (int time = 0; time < 2; ++time)
      EXPECT_EQ(run({.left = left.as<float>(),
                     .floats = kSpanFloats,
                     .rows = static_cast<int>(p.at.size()),
                     .arrivals = arrivals.as<int>()}),
                got);
  }

  std::mt19937 rng_{7};
  std::vector<Target> targets_;
};

TEST_F(AttentionTest, DecodingOfEveryLength) {
  // Within a page, at its end, one more, many splits, and all of them in one batch.
  check({.head_dim = 64, .heads = 64, .kv_heads = 8, .tokens = {1, 2, 31, 32, 33, 64, 129, 160, 161, 700}});
  check({.head_dim = 64, .heads = 16, .kv_heads = 2, .tokens = {2561, 5000}});
}

TEST_F(AttentionTest, DecodingInAWindow) {
  for (const int window : {1, 31, 32, 128})
    check({.head_dim = 64,
           .heads = 16,
           .kv_heads = 2,
           .window = window,
           .tokens = {1, 127, 128, 129, 160, 1000}});
}

TEST_F(AttentionTest, DecodingOfOtherShapes) {
  for (const int head_dim : {32, 64, 128}) {
    for (const int group : {1, 3, 8, 16}) {
      for (const bool fp8 : {false, true}) {
        check({.head_dim = head_dim,
               .heads = 2 * group,
               .kv_heads = 2,
               .fp8 = fp8,
               .window = group == 8 ? 50 : 0,
               .tokens = {40, 333}});
      }
    }
  }
}

TEST_F(AttentionTest, PromptsOfEveryLength) {
  for (const int rows : {2, 15, 16, 17, 40, 150}) {
    check({.head_dim = 64,
           .heads = 16,
           .kv_heads = 2,
           .tokens = {rows, 200, 131},
           .rows = std::min(rows, 131)});
  }
  // Several spans of 1,024 keys.
  check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {1500, 2100}, .rows = 20});
}

// Scores that leave the first block's far below, or above.
TEST_F(AttentionTest, PromptsWhoseScoresGrow) {
  for (const float growth : {0.001F, 0.02F, 0.3F, -0.0004F}) {
    for (const int rows : {1, 40})
      check({.head_dim = 64,
             .heads = 16,
             .kv_heads = 2,
             .tokens = {150, 1300, 2100},
             .rows = rows,
             .growth = growth});
  }
}

TEST_F(AttentionTest, PromptsInAWindow) {
  for (const int window : {1, 32, 100, 128})
    check({.head_dim = 64, .heads = 16, .kv_heads = 2, .window = window, .tokens = {60, 700}, .rows = 60});
}

TEST_F(AttentionTest, PromptsOfOtherShapes) {
  for (const int head_dim : {32, 64, 128}) {
    for (const int group : {1, 8, 16}) {
      for (const bool fp8 : {false, true}) {
        check({.head_dim = head_dim,
               .heads = 2 * group,
               .kv_heads = 2,
               .fp8 = fp8,
               .window = group == 16 ? 50 : 0,
               .tokens = {140, 40},
               .rows = 33});
      }
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
