// moesaic_ops.h on the host's memory: a layer's operators but the experts, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "moesaic/moesaic_ops.h"
#include "mx/formats.h"

namespace moesaic {
namespace {

using mx::decode_bf16, mx::encode_bf16;

constexpr int kColumns = 32, kRows = 96;  // a head of Q, of K and of V, of 32

// (r, c) -> a value that BF16 has
float weight_at(int r, int c) { return static_cast<float>((r * 7 + c * 5) % 17 - 8) / 16; }

struct Product {
  std::vector<uint16_t> weight, bias, x;
  moesaic_dense* dense = nullptr;
  explicit Product(int tokens = 2, const char* format = nullptr) {
    for (int r = 0; r < kRows; ++r) {
      bias.push_back(encode_bf16(static_cast<float>(r % 5)));
      for (int c = 0; c < kColumns; ++c) weight.push_back(encode_bf16(weight_at(r, c)));
    }
    for (int i = 0; i < tokens * kColumns; ++i) x.push_back(encode_bf16(static_cast<float>(i % 9 - 4)));
    moesaic_dense_matrix matrix;
    moesaic_dense_matrix_init(&matrix, sizeof matrix);
    matrix.device = MOESAIC_HOST, matrix.weight = weight.data(), matrix.bias = bias.data();
    matrix.rows = kRows, matrix.columns = kColumns, matrix.format = format;
    EXPECT_EQ(moesaic_dense_prepare(&matrix, nullptr, &dense), MOESAIC_OK) << moesaic_last_error();
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() { moesaic_dense_close(dense); }
  double at(int token, int row, const std::vector<double>* scaled = nullptr) const {
    double sum = decode_bf16(bias[static_cast<size_t>(row)]);
    for (int c = 0; c < kColumns; ++c) {
      const auto i = static_cast<size_t>(token * kColumns + c);
      sum += weight_at(row, c) * (scaled != nullptr ? (*scaled)[i] : double{decode_bf16(x[i])});
    }
    return sum;
  }
};

TEST(CLayerOps, ProjectsAndAddsTheResidual) {
  const Product p;
  std::vector<float> out(2 * kRows, -1.0f), residual(2 * kRows, 0.25f);
  moesaic_project_call call;
  moesaic_project_call_init(&call, sizeof call);
  EXPECT_EQ(call.out_type, MOESAIC_BF16);
  call.tokens = 2, call.x = p.x.data(), call.out = out.data(), call.out_type = MOESAIC_F32;
  for (const bool adds : {false, true}) {
    call.residual = adds ? residual.data() : nullptr;
    ASSERT_EQ(moesaic_project(p.dense, &call, nullptr), MOESAIC_OK) << moesaic_last_error();
    for (int i = 0; i < 2 * kRows; ++i)
      EXPECT_NEAR(out[static_cast<size_t>(i)], p.at(i / kRows, i % kRows) + (adds ? 0.25 : 0), 1e-4);
  }
  char* const plan = moesaic_dense_plan(p.dense, 1);
  EXPECT_STREQ(plan, "reference");
  moesaic_free(plan);
  EXPECT_EQ(moesaic_dense_workspace_bytes(p.dense, 4), 0u);
  EXPECT_EQ(moesaic_dense_weight_bytes(p.dense), sizeof(float) * kRows * (kColumns + 1));
  call.tokens = 0, call.x = nullptr;
  EXPECT_EQ(moesaic_project(p.dense, &call, nullptr), MOESAIC_OK);
}

// Values of at most 8/16 in steps of 1/16 lose bits in MXFP4, and none in MXFP8.
TEST(CLayerOps, RoundsTheWeightToAFormat) {
  std::vector<float> exact(2 * kRows), rounded(2 * kRows);
  for (const auto& [format, same] : {std::pair("mxfp8", true), std::pair("mxfp4", false)}) {
    const Product keep, made(2, format);
    moesaic_project_call call;
    moesaic_project_call_init(&call, sizeof call);
    call.tokens = 2, call.x = keep.x.data(), call.out_type = MOESAIC_F32, call.out = exact.data();
    ASSERT_EQ(moesaic_project(keep.dense, &call, nullptr), MOESAIC_OK);
    call.out = rounded.data();
    ASSERT_EQ(moesaic_project(made.dense, &call, nullptr), MOESAIC_OK);
    EXPECT_EQ(exact == rounded, same) << format;
  }
}

struct Pages {
  static constexpr int kTokens = 16, kPages = 3;
  std::vector<uint16_t> k, v;
  moesaic_paged_cache cache;
  Pages() : k(size_t{kPages} * kTokens * 32, encode_bf16(1)), v(k) {
    moesaic_paged_cache_init(&cache, sizeof cache);
    EXPECT_EQ(cache.head_dim, 64);
    cache.k = k.data(), cache.v = v.data(), cache.page_tokens = kTokens, cache.kv_heads = 1;
    cache.head_dim = 32, cache.pages = kPages;
    cache.page_stride = kTokens * 32, cache.token_stride = cache.head_stride = 32;
  }
};

TEST(CLayerOps, NormsRotatesAndWritesTheCache) {
  const Product p;
  Pages pages;
  std::vector<uint16_t> norm(kColumns, encode_bf16(2)), q(2 * 32);
  std::vector<float> turn(2 * 32);  // position 1: a quarter of a turn
  for (int i = 0; i < 16; ++i) turn[static_cast<size_t>(i)] = 1, turn[static_cast<size_t>(48 + i)] = 1;
  const std::vector<int64_t> positions = {0, 1}, slots = {17, 40};
  moesaic_qkv_call call;
  moesaic_qkv_call_init(&call, sizeof call);
  EXPECT_FLOAT_EQ(call.eps, 1e-5f);
  call.tokens = 2, call.x = p.x.data(), call.norm = norm.data(), call.heads = 1, call.cache = &pages.cache;
  call.positions = positions.data(), call.cos_sin = turn.data(), call.table_positions = 2;
  call.slots = slots.data(), call.q = q.data();
  ASSERT_EQ(moesaic_norm_qkv_rope(p.dense, &call, nullptr), MOESAIC_OK) << moesaic_last_error();
  std::vector<double> normed;
  for (int t = 0; t < 2; ++t) {
    double squares = 0;
    for (int c = 0; c < kColumns; ++c)
      squares += std::pow(decode_bf16(p.x[static_cast<size_t>(t * 32 + c)]), 2);
    for (int c = 0; c < kColumns; ++c)
      normed.push_back(2 * decode_bf16(p.x[static_cast<size_t>(t * 32 + c)]) /
                       std::sqrt(squares / kColumns + 1e-5));
  }
  for (int t = 0; t < 2; ++t) {
    for (int i = 0; i < 32; ++i) {
      const int other = i < 16 ? i + 16 : i - 16;
      const auto turned = [&](int first) {
        if (t == 0) return p.at(t, first + i, &normed);
        return (i < 16 ? -1 : 1) * p.at(t, first + other, &normed);
      };
      const size_t place = static_cast<size_t>(slots[static_cast<size_t>(t)] * 32 + i);
      const double want[3] = {turned(0), turned(32), p.at(t, 64 + i, &normed)};
      const uint16_t got[3] = {q[static_cast<size_t>(t * 32 + i)], pages.k[place], pages.v[place]};
      for (int part = 0; part < 3; ++part)
        EXPECT_NEAR(decode_bf16(got[part]), want[part], 1e-3 + std::fabs(want[part]) / 200) << part;
    }
  }
}

struct Attention {
  Pages pages;
  std::vector<uint16_t> q = std::vector<uint16_t>(32, encode_bf16(0)), out = q;
  std::vector<int32_t> starts = {0, 1}, lengths = {20}, tables = {2, 0};
  std::vector<float> sinks = {std::log(5.0f)};
  moesaic_attention_call call;
  Attention() {
    moesaic_attention_call_init(&call, sizeof call);
    call.device = MOESAIC_HOST, call.heads = 1, call.rows = call.sequences = 1, call.cache = &pages.cache;
    call.q = q.data(), call.out = out.data(), call.sinks = sinks.data(), call.starts = starts.data();
    call.lengths = lengths.data(), call.tables = tables.data(), call.table_stride = call.table_pages = 2;
  }
};

// Queries of 0 give all keys the same weight, and the sink that of 5 keys: n values of 1 become n / (n + 5).
TEST(CLayerOps, AttendsOverPages) {
  Attention a;
  ASSERT_EQ(moesaic_paged_attention(&a.call, nullptr), MOESAIC_OK) << moesaic_last_error();
  for (const uint16_t x : a.out) EXPECT_NEAR(decode_bf16(x), 20.0 / 25, 0.005);
  a.call.window = 3;
  ASSERT_EQ(moesaic_paged_attention(&a.call, nullptr), MOESAIC_OK);
  for (const uint16_t x : a.out) EXPECT_NEAR(decode_bf16(x), 3.0 / 8, 0.005);
  a.call.window = 0, a.call.sinks = nullptr;
  ASSERT_EQ(moesaic_paged_attention(&a.call, nullptr), MOESAIC_OK);
  for (const uint16_t x : a.out) EXPECT_EQ(decode_bf16(x), 1);
  a.tables[0] = 3;
  ASSERT_EQ(moesaic_paged_attention(&a.call, nullptr), MOESAIC_OK);
  for (const uint16_t x : a.out) EXPECT_TRUE(std::isnan(decode_bf16(x)));
  EXPECT_EQ(moesaic_attention_workspace_bytes(&a.call), 0u);
}

TEST(CLayerOps, SayWhatIsWrong) {
  const auto refused = [](moesaic_status status, const std::string& line) {
    EXPECT_NE(status, MOESAIC_OK);
    EXPECT_EQ(moesaic_last_error(), line);
  };
  Attention a;
  const Product p;
  refused(moesaic_paged_attention(nullptr, nullptr), "call is NULL");
  refused(moesaic_norm_qkv_rope(p.dense, nullptr, nullptr), "call is NULL");
  refused(moesaic_project(p.dense, nullptr, nullptr), "call is NULL");
  moesaic_project_call project;
  moesaic_project_call_init(&project, sizeof project);
  refused(moesaic_project(nullptr, &project, nullptr), "dense is NULL");
  project.out_type = 9;
  refused(moesaic_project(p.dense, &project, nullptr), "out_type: type 9");
  moesaic_dense* dense = nullptr;
  moesaic_dense_matrix matrix;
  moesaic_dense_matrix_init(&matrix, sizeof matrix);
  refused(moesaic_dense_prepare(nullptr, nullptr, &dense), "matrix is NULL");
  refused(moesaic_dense_prepare(&matrix, nullptr, nullptr), "dense is NULL");
  matrix.device = MOESAIC_HOST, matrix.rows = 1, matrix.columns = 32;
  refused(moesaic_dense_prepare(&matrix, nullptr, &dense), "dense: the weight is missing");
  matrix.format = "q8_0";
  refused(moesaic_dense_prepare(&matrix, nullptr, &dense), "dense: format Q8_0; use bf16, mxfp8 or mxfp4");
  EXPECT_EQ(dense, nullptr);
  moesaic_dense_close(nullptr);
  EXPECT_EQ(moesaic_dense_workspace_bytes(nullptr, 1) + moesaic_dense_weight_bytes(nullptr), 0u);
  EXPECT_EQ(moesaic_dense_plan(nullptr, 1), nullptr);
  EXPECT_EQ(moesaic_attention_workspace_bytes(nullptr), 0u);
  a.call.cache = nullptr;
  refused(moesaic_paged_attention(&a.call, nullptr), "cache is NULL");
  a.call.cache = &a.pages.cache, a.pages.cache.fp8 = 2;
  refused(moesaic_paged_attention(&a.call, nullptr), "fp8 is 2; it is 0 or 1");
  a.pages.cache.fp8 = 0, a.call.size = 7;
  EXPECT_EQ(moesaic_paged_attention(&a.call, nullptr), MOESAIC_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace moesaic
