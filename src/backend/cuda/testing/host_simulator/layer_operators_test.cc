// prepare_dense() of backend/layer_operators.h, whole and on the host: its own code and kernels for every
// device, against the reference backend's.
#include "backend/cuda/operators/layer_operators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "backend/cuda/testing/host_simulator/layer_memory.h"
#include "backend/reference/layer_operators.h"

namespace moesaic {
namespace {

struct DenseCase {
  ElementType type;
  std::optional<Format> format;
  int rows, cols, tokens;
  ElementType out = ElementType::kF32;
  bool residual = false, in_place = false, bias = true;
};

struct DenseProblem {
  DenseCase c;
  std::mt19937 rng{5};
  std::vector<uint8_t> weight;
  std::vector<uint16_t> bias, x;
  std::vector<float> residual;
  std::unique_ptr<DenseOperator> made[2];  // on the device, and the reference

  explicit DenseProblem(const DenseCase& of) : c(of) {
    const auto count = static_cast<size_t>(c.rows * c.cols);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(c.cols)));
    for (size_t i = 0; i < count; ++i) {
      const float w = bf16(mx::encode_bf16(normal(rng)));  // the same value in every type
      const uint16_t code = c.type == ElementType::kF16 ? mx::encode_f16(w) : mx::encode_bf16(w);
      const auto* bytes = reinterpret_cast<const uint8_t*>(&code);
      if (c.type == ElementType::kF32) bytes = reinterpret_cast<const uint8_t*>(&w);
      weight.insert(weight.end(), bytes, bytes + (c.type == ElementType::kF32 ? 4 : 2));
    }
    bias = random_bf16(static_cast<size_t>(c.rows), rng);
    x = random_bf16(static_cast<size_t>(c.tokens * c.cols), rng);
    for (const uint16_t code : random_bf16(static_cast<size_t>(c.tokens * c.rows), rng))
      residual.push_back(bf16(code));
    const OnDevice<uint8_t> w(weight);
    const OnDevice<uint16_t> b(bias);
    const DenseMatrix matrix{.weight = w.data(),
                             .type = c.type,
                             .rows = c.rows,
                             .cols = c.cols,
                             .row_stride = c.cols,
                             .bias = c.bias ? b.data() : nullptr};
    EXPECT_EQ(check({.format = c.format}, matrix).message(), "");
    made[0] = std::move(cuda::prepare_dense({.format = c.format, .warm_up = false}, matrix, nullptr)).value();
    made[1] = std::move(reference::prepare_dense({.device = kHost, .format = c.format}, matrix)).value();
  }
  std::vector<float> run(const DenseOperator& op, bool workspace) const {
    const bool half = c.out == ElementType::kBF16;
    std::vector<uint8_t> stored(residual.size() * (half ? 2 : 4));
    for (size_t i = 0; i < residual.size(); ++i) {
      const uint16_t code = mx::encode_bf16(residual[i]);
      std::memcpy(&stored[i * (half ? 2 : 4)], half ? static_cast<const void*>(&code) : &residual[i],
                  half ? 2 : 4);
    }
    const OnDevice<uint8_t> before(stored), other(std::vector<uint8_t>(stored.size(), kPoison));
    const OnDevice<uint8_t>& out = c.in_place ? before : other;
    const OnDevice<uint8_t> memory(std::vector<uint8_t>(op.workspace_bytes(c.tokens), kPoison));
    const Status status =
        op.run(DenseCall{.tokens = c.tokens,
                         .x = x.data(),
                         .out = out.data(),
                         .out_type = c.out,
                         .residual = c.residual ? before.data() : nullptr,
                         .scratch = workspace ? Scratch{memory.data(), memory.count} : Scratch{}});
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> values;
    for (size_t i = 0; i < residual.size(); ++i)
      values.push_back(half ? bf16(reinterpret_cast<const uint16_t*>(out.data())[i])
                            : reinterpret_cast<const float*>(out.data())[i]);
    return values;
  }
};

class DenseOperators : public testing::TestWithParam<DenseCase> {};

// Sums in F32 of values of size 1; out is rounded twice.
TEST_P(DenseOperators, GiveWhatTheReferenceGives) {
  const DenseProblem p(GetParam());
  const std::vector<float> want = p.run(*p.made[1], false), got = p.run(*p.made[0], false);
  const float last = p.c.out == ElementType::kBF16 ? 0x1p-8f : 0;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::fabs(got[i] - want[i]), 2e-4f + last * std::fabs(want[i])) << i << " " << want[i];
  EXPECT_EQ(p.run(*p.made[0], true), got);
}

constexpr auto kF32 = ElementType::kF32, kF16 = ElementType::kF16, kBF16 = ElementType::kBF16;
INSTANTIATE_TEST_SUITE_P(
    Shapes, DenseOperators,
    testing::Values(DenseCase{kBF16, {}, 100, 64, 1}, DenseCase{kBF16, {}, 33, 512, 9, kBF16, true},
                    DenseCase{kBF16, {}, 96, 512, 130, kBF16, true, true},
                    DenseCase{kF16, {}, 64, 96, 3, kF32, true},
                    DenseCase{kF32, {}, 64, 96, 17, kF32, true, true, false},
                    DenseCase{kBF16, Format::kMxfp8, 70, 512, 2, kF32},
                    DenseCase{kBF16, Format::kMxfp8, 64, 512, 40, kBF16, true},
                    DenseCase{kBF16, Format::kMxfp4, 100, 288, 8, kF32},
                    DenseCase{kF16, Format::kMxfp4, 64, 64, 70, kBF16}, DenseCase{kBF16, {}, 1, 32, 3},
                    DenseCase{kF16, {}, 7, 160, 5, kBF16, true},
                    DenseCase{kBF16, Format::kMxfp8, 7, 32, 17, kF32, true, true},
                    DenseCase{kBF16, Format::kMxfp4, 201, 96, 33, kF32},
                    DenseCase{kBF16, {}, 33, 96, 300, kF32, true},
                    DenseCase{kBF16, {}, 40, 32, 4099, kF32},                       // in pieces
                    DenseCase{kBF16, Format::kMxfp4, 40, 32, 4200, kBF16, true}));  // in pieces

TEST(DenseOperator, ValuesThatAreNotFiniteAreTheirTokensOwn) {
  for (const int tokens : {3, 40, 130}) {
    for (const std::optional<Format> format : {std::optional<Format>(), std::optional(Format::kMxfp4)}) {
      DenseProblem p({kBF16, format, 70, 64, tokens});
      const std::vector<float> want = p.run(*p.made[0], true);
      p.x[64 + 9] = 0x7FC0;
      const std::vector<float> got = p.run(*p.made[0], true);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::isnan(got[i]), i / 70 == 1) << i;
        if (i / 70 != 1) {
          ASSERT_EQ(got[i], want[i]) << i;
        }
      }
    }
  }
}

TEST(DenseOperator, RefusesInOneLine) {
  DenseProblem p({kBF16, {}, 64, 64, 2});
  const OnDevice<uint16_t> x(p.x);
  const OnDevice<float> out(p.residual);
  const auto refused = [&](auto change) {
    DenseCall call{.tokens = 2, .x = x.data(), .out = out.data(), .out_type = kF32};
    change(call);
    std::string messages[2];
    for (int i = 0; i < 2; ++i) messages[i] = p.made[i]->run(call).message();
    if (call.scratch.memory == nullptr) {
      EXPECT_EQ(messages[0], messages[1]);
    }
    return messages[0];
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_EQ(refused([](auto& c) { c.tokens = 0, c.x = nullptr; }), "");
  EXPECT_EQ(refused([](auto& c) { c.tokens = -1; }), "dense: -1 tokens");
  EXPECT_EQ(refused([](auto& c) { c.x = nullptr; }), "dense: x is missing");
  EXPECT_EQ(refused([](auto& c) { c.out = const_cast<void*>(c.x); }), "dense: out is x itself");
  EXPECT_EQ(refused([](auto& c) { c.out = static_cast<float*>(const_cast<void*>(c.x)) + 4; }),
            "dense: out overlaps x");
  EXPECT_EQ(refused([](auto& c) { c.residual = static_cast<const float*>(c.out) + 4; }),
            "dense: out overlaps residual");
  EXPECT_EQ(refused([](auto& c) {
              c.tokens = INT64_MAX, c.residual = static_cast<const float*>(c.out) + 4;
            }).find("dense: out overlaps "),
            0u);
  EXPECT_EQ(refused([](auto& c) { c.out_type = kF16; }), "dense: out is BF16 or F32, not F16");
  EXPECT_EQ(refused([](auto& c) { c.residual = static_cast<const float*>(c.out) + 1; }),
            "dense: residual must be 16-byte aligned");
  EXPECT_NE(refused([](auto& c) {
              c.scratch = {c.out, 4};
            }).find("a workspace of 4 bytes"),
            std::string::npos);

  const auto matrix = [&](int64_t rows, int64_t cols, int64_t stride) {
    return DenseMatrix{.weight = x.data(), .rows = rows, .cols = cols, .row_stride = stride};
  };
  EXPECT_NE(check({}, matrix(2, 60, 64)).message().find("a matrix of 2 x 60"), std::string::npos);
  EXPECT_NE(check({}, matrix(2, 64, 60)).message().find("60 values apart"), std::string::npos);
  EXPECT_EQ(check({.format = Format::kQ8_0}, matrix(2, 64, 64)).message(),
            "dense: format Q8_0; use bf16, mxfp8 or mxfp4");
  const uint16_t host = 0;
  DenseMatrix elsewhere = matrix(2, 32, 32);
  elsewhere.weight = &host;
  EXPECT_EQ(cuda::prepare_dense({}, elsewhere, nullptr).status().message(),
            "dense: the weight is not in a GPU's memory");
  EXPECT_EQ(cuda::prepare_dense({.device = 2}, matrix(2, 32, 32), nullptr).status().message(),
            "dense: device cuda:2: this machine has 1");
  x.data()[7] = 0x7F80;
  EXPECT_EQ(cuda::prepare_dense({}, matrix(2, 32, 32), nullptr).status().message(),
            "dense: the weight has a value that is not finite");
  EXPECT_EQ(reference::prepare_dense({}, matrix(2, 32, 32)).status().message(),
            "dense: the weight's row 0 has a value that is not finite");
}

// ---- norm, QKV, RoPE, KV write ----

struct QkvCase {
  int page_tokens;
  bool hnd, fp8;
  int heads, kv_heads, head_dim, hidden, tokens;
  std::optional<Format> format = {};
  ElementType cos_sin = kF32;
};

struct QkvProblem {
  static constexpr int kPositions = 50, kPages = 9;
  QkvCase c;
  std::mt19937 rng{9};
  DenseProblem dense;
  Cache cache;
  std::vector<uint16_t> norm;
  std::vector<float> cos_sin;
  std::vector<uint16_t> cos_sin_bf16;
  std::vector<int64_t> positions, slots;

  explicit QkvProblem(const QkvCase& of)
      : c(of),
        dense({kBF16, of.format, (of.heads + 2 * of.kv_heads) * of.head_dim, of.hidden, of.tokens}),
        cache(of.page_tokens, of.hnd, of.fp8, of.kv_heads, of.head_dim, kPages, rng) {
    norm = random_bf16(static_cast<size_t>(c.hidden), rng);
    for (int i = 0; i < kPositions * c.head_dim; ++i) {
      const int position = i / c.head_dim;
      const double angle = position * std::pow(0.3, i % (c.head_dim / 2));
      const bool sine = i % c.head_dim >= c.head_dim / 2;
      const auto x = static_cast<float>(1.3 * (sine ? std::sin(angle) : std::cos(angle)));
      cos_sin_bf16.push_back(mx::encode_bf16(x));
      cos_sin.push_back(c.cos_sin == kBF16 ? bf16(cos_sin_bf16.back()) : x);
    }
    std::vector<int64_t> places(static_cast<size_t>(kPages * c.page_tokens));
    std::iota(places.begin(), places.end(), 0);
    std::ranges::shuffle(places, rng);
    for (int t = 0; t < c.tokens; ++t) {
      positions.push_back(t * 7 % kPositions);
      slots.push_back(t % 5 == 4 ? -1 : places[static_cast<size_t>(t)]);
    }
  }
  struct Out {
    std::vector<uint16_t> q;
    std::vector<uint8_t> k, v;
  };
  Out run(int which) const {
    Out out{std::vector<uint16_t>(static_cast<size_t>(c.tokens * c.heads * c.head_dim), 0x7FFF), cache.k,
            cache.v};
    const OnDevice<uint8_t> k(cache.k), v(cache.v);
    const OnDevice<uint16_t> q(out.q);
    const Status status = dense.made[which]->run(QkvCall{
        .tokens = c.tokens,
        .x = dense.x.data(),
        .norm = norm.data(),
        .eps = 1e-5f,
        .heads = c.heads,
        .cache = cache.of(k.data(), v.data()),
        .positions = positions.data(),
        .cos_sin = c.cos_sin == kBF16 ? static_cast<const void*>(cos_sin_bf16.data()) : cos_sin.data(),
        .cos_sin_type = c.cos_sin,
        .table_positions = kPositions,
        .slots = slots.data(),
        .q = q.data()});
    EXPECT_TRUE(status.ok()) << status.message();
    return {q.values(), k.values(), v.values()};
  }
};

class QkvOperators : public testing::TestWithParam<QkvCase> {};

// Normed rows are rounded to 8 bits (or 11), which the sum of as many as there are columns makes an error of
// some 2^-8 of a value of size 1; RoPE here makes it up to 1.3 times sqrt(2) larger. E4M3 has 3 bits.
TEST_P(QkvOperators, GiveWhatTheReferenceGives) {
  const QkvProblem p(GetParam());
  const QkvProblem::Out want = p.run(1), got = p.run(0);
  for (size_t i = 0; i < want.q.size(); ++i)
    ASSERT_LE(std::fabs(bf16(got.q[i]) - bf16(want.q[i])), 0.02f + 0x1p-8f * std::fabs(bf16(want.q[i]))) << i;
  const float last = p.c.fp8 ? 0x1p-3f : 0x1p-8f;
  size_t changed = 0;
  for (size_t i = 0; i < want.k.size() / (p.c.fp8 ? 1 : 2); ++i) {
    for (const auto& [a, b, before] :
         {std::tuple(&got.k, &want.k, &p.cache.k), std::tuple(&got.v, &want.v, &p.cache.v)}) {
      const float x = p.cache.value(*a, i), y = p.cache.value(*b, i);
      ASSERT_LE(std::fabs(x - y), 0.02f + last * std::fabs(y)) << i;
      changed += y != p.cache.value(*before, i) ? 1 : 0;
    }
  }
  EXPECT_GT(changed, 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, QkvOperators,
                         testing::Values(QkvCase{16, false, false, 4, 2, 64, 96, 1},
                                         QkvCase{32, true, false, 8, 1, 32, 512, 20, {}, kBF16},
                                         QkvCase{64, true, true, 2, 2, 128, 64, 9, Format::kMxfp8},
                                         QkvCase{16, false, true, 4, 1, 64, 64, 40, Format::kMxfp4}));

TEST(QkvOperator, WhatIsOutsideIsNaNAndWritesNothing) {
  QkvProblem p({16, true, false, 2, 1, 64, 64, 6});
  p.positions[0] = -1, p.positions[1] = QkvProblem::kPositions;
  p.slots[2] = QkvProblem::kPages * 16, p.slots[3] = int64_t{1} << 40, p.slots[4] = -5, p.slots[5] = 3;
  const int64_t row = 2 * 64;
  for (int which = 0; which < 2; ++which) {
    const QkvProblem::Out out = p.run(which);
    for (int64_t i = 0; i < 6 * row; ++i)
      EXPECT_EQ(std::isnan(bf16(out.q[static_cast<size_t>(i)])), i < 4 * row) << i;
    for (size_t i = 0; i < out.k.size(); ++i) {
      if (i / 2 / 64 == 3) continue;  // the sixth token's
      ASSERT_EQ(out.k[i], p.cache.k[i]) << i;
      ASSERT_EQ(out.v[i], p.cache.v[i]) << i;
    }
    EXPECT_FALSE(std::equal(out.k.begin(), out.k.end(), p.cache.k.begin()));
  }
}

TEST(QkvOperator, RefusesInOneLine) {
  const QkvProblem p({16, true, false, 2, 1, 64, 64, 1});
  std::vector<uint8_t> k = p.cache.k, v = p.cache.v;
  const OnDevice<uint16_t> q(std::vector<uint16_t>(2 * 64));
  const auto refused = [&](auto change) {
    QkvCall call{.tokens = 1,
                 .x = p.dense.x.data(),
                 .norm = p.norm.data(),
                 .heads = 2,
                 .cache = p.cache.of(k.data(), v.data()),
                 .positions = p.positions.data(),
                 .cos_sin = p.cos_sin.data(),
                 .table_positions = QkvProblem::kPositions,
                 .slots = p.slots.data(),
                 .q = q.data()};
    change(call);
    std::string message = p.dense.made[0]->run(call).message();
    EXPECT_EQ(message, p.dense.made[1]->run(call).message());
    return message;
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_EQ(refused([](auto& c) { c.heads = 3; }),
            "norm_qkv_rope: the weight has 256 rows; 3 heads and 1 KV heads of 64 have 320");
  EXPECT_EQ(refused([](auto& c) { c.slots = nullptr; }), "norm_qkv_rope: slots is missing");
  EXPECT_EQ(refused([](auto& c) { c.eps = -1; }), "norm_qkv_rope: eps -1");
  EXPECT_EQ(refused([](auto& c) { c.table_positions = 0; }), "norm_qkv_rope: cos_sin has 0 positions");
  EXPECT_EQ(refused([](auto& c) { c.cache.pages = 0; }), "norm_qkv_rope: a cache of 0 pages of 16 tokens");
  EXPECT_EQ(refused([](auto& c) { c.heads = c.cache.kv_heads = 1431655767; }),
            "norm_qkv_rope: 1431655767 heads and 1431655767 KV heads: 1 to 16 heads share a KV head");
  EXPECT_EQ(refused([](auto& c) { c.cache.v = c.cache.k; }), "norm_qkv_rope: the cache's k is its v");
  EXPECT_EQ(refused([](auto& c) { c.cache.v = static_cast<uint16_t*>(c.cache.k) + 64; }),
            "norm_qkv_rope: the cache's k overlaps the cache's v");
  EXPECT_EQ(refused([](auto& c) { c.cache.page_stride = 64; }),
            "norm_qkv_rope: the cache's strides are 64, 64 and 1024 values (page, token, head): its rows "
            "overlap");
  EXPECT_EQ(refused([](auto& c) { c.q = static_cast<uint16_t*>(c.cache.v) + 64; }),
            "norm_qkv_rope: q overlaps the cache's v");
  EXPECT_EQ(refused([](auto& c) { c.q = const_cast<void*>(c.x); }), "norm_qkv_rope: q is x itself");
  EXPECT_EQ(refused([&](auto& c) { c.norm = static_cast<const uint16_t*>(c.q) + 1; }),
            "norm_qkv_rope: q overlaps norm");
  EXPECT_EQ(refused([&](auto& c) { c.cos_sin = reinterpret_cast<const char*>(c.cos_sin) + 2; }),
            "norm_qkv_rope: cos_sin must be 4-byte aligned");
}

}  // namespace
}  // namespace moesaic
