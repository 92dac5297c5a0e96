// paged_attention() of backend/layer_operators.h, whole and on the host: its own code and kernels, against
// the reference backend's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "backend/cuda/operators/layer_operators.h"
#include "backend/cuda/testing/host_simulator/layer_memory.h"
#include "backend/reference/layer_operators.h"

namespace moesaic {
namespace {

struct AttentionCase {
  int page_tokens;
  bool hnd, fp8;
  int heads, kv_heads, head_dim, window;
  std::vector<std::pair<int, int>> sequences;  // rows, length
  bool sinks = true;
};

struct AttentionProblem {
  AttentionCase c;
  std::mt19937 rng{3};
  int rows = 0, table_pages = 0;
  std::vector<int32_t> starts = {0}, lengths, tables;
  Cache cache;
  std::vector<uint16_t> q;
  std::vector<float> sinks;

  static int pages_of(const AttentionCase& c) {
    int most = 0;
    for (const auto& [rows, length] : c.sequences)
      most = std::max(most, (length + c.page_tokens - 1) / c.page_tokens);
    return most;
  }
  explicit AttentionProblem(const AttentionCase& of)
      : c(of),
        table_pages(pages_of(of)),
        cache(of.page_tokens, of.hnd, of.fp8, of.kv_heads, of.head_dim,
              std::ssize(of.sequences) * pages_of(of), rng) {
    for (const auto& [count, length] : c.sequences)
      rows += count, starts.push_back(rows), lengths.push_back(length);
    tables.resize(c.sequences.size() * static_cast<size_t>(table_pages));
    std::iota(tables.begin(), tables.end(), 0);
    std::ranges::shuffle(tables, rng);
    q = random_bf16(static_cast<size_t>(rows * c.heads * c.head_dim), rng);
    std::normal_distribution<float> normal;
    for (int h = 0; h < c.heads; ++h) sinks.push_back(2 * normal(rng));
  }
  PagedAttentionCall call(int device, void* k, void* v, uint16_t* out) const {
    return {.device = device,
            .rows = rows,
            .sequences = std::ssize(c.sequences),
            .heads = c.heads,
            .cache = cache.of(k, v),
            .q = q.data(),
            .out = out,
            .sinks = c.sinks ? sinks.data() : nullptr,
            .window = c.window,
            .starts = starts.data(),
            .lengths = lengths.data(),
            .tables = tables.data(),
            .table_stride = table_pages,
            .table_pages = table_pages};
  }
  std::vector<uint16_t> run(bool reference, bool workspace = false) const {
    std::vector<uint8_t> k = cache.k, v = cache.v;
    const OnDevice<uint16_t> out(std::vector<uint16_t>(q.size(), 0x7FFF));
    PagedAttentionCall call = this->call(reference ? kHost : 0, k.data(), v.data(), out.data());
    EXPECT_EQ(check(call).message(), "");
    const OnDevice<uint8_t> memory(std::vector<uint8_t>(cuda::attention_workspace_bytes(call), kPoison));
    if (workspace) call.scratch = {memory.data(), memory.count};
    const Status status = reference ? reference::paged_attention(call) : cuda::paged_attention(call);
    EXPECT_TRUE(status.ok()) << status.message();
    return out.values();
  }
};

class PagedAttentionOperator : public testing::TestWithParam<AttentionCase> {};

// Weights are rounded to 8 bits, and both results: values are of size 1.
TEST_P(PagedAttentionOperator, GivesWhatTheReferenceGives) {
  const AttentionProblem p(GetParam());
  const std::vector<uint16_t> want = p.run(true), got = p.run(false);
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::fabs(bf16(got[i]) - bf16(want[i])), 0x1p-8f * (2 * std::fabs(bf16(want[i])) + 3)) << i;
  EXPECT_EQ(p.run(false, true), got);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PagedAttentionOperator,
    testing::Values(AttentionCase{16, false, false, 8, 1, 64, 0, {{1, 1}, {1, 17}, {1, 300}}},
                    AttentionCase{16, true, true, 8, 2, 64, 0, {{3, 40}, {20, 20}, {1, 600}, {0, 9}}},
                    AttentionCase{32, true, false, 4, 2, 32, 20, {{1, 100}, {33, 70}}},
                    AttentionCase{64, false, true, 6, 2, 128, 0, {{2, 70}, {1, 65}}, false},
                    AttentionCase{64, true, false, 16, 1, 64, 128, {{17, 500}}},
                    AttentionCase{16, false, false, 7, 1, 32, 1, {{5, 33}, {1, 1}, {0, 0}}},
                    AttentionCase{32, true, true, 15, 3, 128, INT32_MAX, {{7, 70}, {2, 2}}},
                    AttentionCase{64, false, false, 10, 2, 64, 1000, {{1, 65}, {30, 200}}}));

// The greatest, of which nothing else is left; the smallest, which are nothing; and what gives rows of NaN.
TEST(PagedAttentionOperator, SinksMayBeOfAnySize) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  AttentionProblem p({16, true, false, 8, 1, 64, 0, {{1, 1}, {3, 300}}});
  for (const float sink : {-kInf, -1e38f, 1e30f, 1e38f, kInf, std::numeric_limits<float>::quiet_NaN()}) {
    std::ranges::fill(p.sinks, sink);
    const std::vector<uint16_t> want = p.run(true), got = p.run(false);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(std::isnan(bf16(got[i])), std::isnan(bf16(want[i]))) << sink;
      if (!std::isnan(bf16(want[i]))) {
        ASSERT_LE(std::fabs(bf16(got[i]) - bf16(want[i])), 0x1p-8f * (2 * std::fabs(bf16(want[i])) + 3));
      }
    }
  }
}

TEST(PagedAttentionOperator, QueriesThatAreNotFiniteAreTheirRowsOwn) {
  AttentionProblem p({16, true, false, 8, 1, 64, 0, {{4, 40}, {1, 300}}});
  const std::vector<uint16_t> want = p.run(false);
  const size_t row = 8 * 64;
  p.q[row + 5] = 0x7FC0;
  for (const bool reference : {false, true}) {
    const std::vector<uint16_t> got = p.run(reference);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::isnan(bf16(got[i])), i / 64 == 8) << i;
      if (!reference && i / 64 != 8) {
        ASSERT_EQ(got[i], want[i]) << i;
      }
    }
  }
}

TEST(PagedAttentionOperator, WrongPagesAndLengthsGiveNaNOnEveryDevice) {
  AttentionProblem p({16, true, false, 8, 1, 64, 0, {{1, 100}, {1, 90}, {3, 50}}});
  p.tables[2] = -7, p.lengths[1] = 1 << 20;
  for (const bool reference : {false, true}) {
    const std::vector<uint16_t> out = p.run(reference);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(bf16(out[i])), i < 2 * 8 * 64) << i;
  }
}

// Rows before the first sequence and behind the last one stay as they are, however many tiles they would be.
TEST(PagedAttentionOperator, RowsOfNoSequenceStayAsTheyAre) {
  for (const int lead : {1, 15, 16, 17, 90}) {
    AttentionProblem p({16, false, false, 8, 1, 64, 0, {{3, 40}, {0, 0}, {20, 300}}});
    const std::vector<uint16_t> alone = p.run(false);
    const size_t row = 8 * 64, before = static_cast<size_t>(lead) * row;
    for (int32_t& start : p.starts) start += lead;
    p.q.insert(p.q.begin(), before, 0x3F80), p.q.insert(p.q.end(), 2 * row, 0x3F80), p.rows += lead + 2;
    for (const bool reference : {false, true}) {
      const std::vector<uint16_t> out = p.run(reference);
      for (size_t i = 0; i < out.size(); ++i) {
        const bool mine = i >= before && i < before + alone.size();
        if (!mine) {
          ASSERT_EQ(out[i], 0x7FFF) << i << " of " << lead;
        } else if (!reference) {
          ASSERT_EQ(out[i], alone[i - before]) << i << " of " << lead;
        }
      }
    }
  }
}

// A sequence some of whose rows the call does not have: which place its rows stand at is not known.
TEST(PagedAttentionOperator, SequencesOfRowsThatAreNotThereAreNaN) {
  for (const int end : {6, 1 << 30}) {
    AttentionProblem p({16, true, false, 8, 1, 64, 0, {{2, 40}, {3, 50}}});
    const std::vector<uint16_t> right = p.run(false);
    p.starts[2] = end;
    for (const bool reference : {false, true}) {
      const std::vector<uint16_t> out = p.run(reference);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(bf16(out[i])), i >= 2 * 8 * 64) << i;
    }
    p.starts[2] = 5, p.starts[0] = -1;
    for (const bool reference : {false, true}) {
      const std::vector<uint16_t> out = p.run(reference);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(bf16(out[i])), i < 2 * 8 * 64) << i;
    }
  }
}

TEST(PagedAttentionOperator, StridesOfASingleOneDoNotMatter) {
  AttentionProblem p({16, false, false, 8, 1, 64, 0, {{1, 10}}});
  const std::vector<uint16_t> want = p.run(false);
  p.cache.shape.page_stride = 1, p.cache.shape.head_stride = 0;
  EXPECT_EQ(p.run(false), want);
}

TEST(PagedAttentionOperator, RefusesInOneLine) {
  const AttentionProblem p({16, true, false, 8, 1, 64, 0, {{1, 10}}});
  std::vector<uint8_t> k = p.cache.k, v = p.cache.v;
  alignas(256) static uint16_t out[8 * 64 + 8];
  const auto refused = [&](auto change) {
    PagedAttentionCall call = p.call(0, k.data(), v.data(), out);
    change(call);
    const Status status = check(call);
    return status.ok() ? cuda::paged_attention(call).message() : status.message();
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_EQ(refused([](auto& c) { c.cache.page_tokens = 8; }),
            "paged_attention: pages of 8 tokens; use 16, 32 or 64");
  EXPECT_EQ(refused([](auto& c) { c.cache.head_dim = 80; }),
            "paged_attention: head_dim 80: 32, 64 and 128 are supported");
  EXPECT_EQ(refused([](auto& c) { c.heads = 17; }),
            "paged_attention: 17 heads and 1 KV heads: 1 to 16 heads share a KV head");
  EXPECT_EQ(refused([](auto& c) { c.out = nullptr; }), "paged_attention: out is missing");
  EXPECT_EQ(refused([](auto& c) { c.out = const_cast<void*>(c.q); }), "paged_attention: out is q itself");
  EXPECT_EQ(refused([](auto& c) { c.out = out + 1; }), "paged_attention: out must be 16-byte aligned");
  EXPECT_EQ(refused([](auto& c) { c.out = static_cast<uint16_t*>(const_cast<void*>(c.q)) + 8; }),
            "paged_attention: out overlaps q");
  EXPECT_EQ(refused([](auto& c) { c.out = static_cast<uint16_t*>(c.cache.k) + 8; }),
            "paged_attention: out overlaps the cache's k");
  EXPECT_EQ(refused([](auto& c) { c.sinks = reinterpret_cast<float*>(out + 2); }),
            "paged_attention: out overlaps sinks");
  EXPECT_EQ(refused([](auto& c) { c.lengths = reinterpret_cast<int32_t*>(out + 1); }),
            "paged_attention: lengths must be 4-byte aligned");
  EXPECT_EQ(refused([](auto& c) { c.rows = c.sequences = INT32_MAX; }),
            "paged_attention: 2147483647 rows of 2147483647 sequences");
  EXPECT_EQ(refused([](auto& c) { c.cache.kv_heads = c.heads = 65536; }),
            "paged_attention: 65536 heads and 65536 KV heads: 1 to 16 heads share a KV head");
  EXPECT_EQ(refused([](auto& c) { c.cache.token_stride = 68; }),
            "paged_attention: the cache's strides are 1024, 68 and 1024 values (page, token, head): at least "
            "64, and multiples of 8");
  EXPECT_NE(refused([](auto& c) {
              c.cache.pages = 1 << 20, c.cache.page_stride = INT64_MAX - 7;
            }).find("the cache's strides are 9223372036854775800,"),
            std::string::npos);
  EXPECT_EQ(refused([](auto& c) { c.table_stride = 0; }),
            "paged_attention: page tables of 1 entries, 0 apart, of 1 sequences");
  EXPECT_EQ(refused([](auto& c) { c.window = -1; }), "paged_attention: a window of -1 tokens; 0 is none");
  EXPECT_EQ(refused([](auto& c) { c.device = 3; }), "paged_attention: device cuda:3: this machine has 1");
  EXPECT_EQ(refused([](auto& c) { c.device = -2; }), "paged_attention: device cuda:-2: this machine has 1");
  EXPECT_NE(refused([](auto& c) { c.scratch = {out, 8}; }).find("a workspace of 8 bytes"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
