// Every attention kernel against a loop in double, on a device: pages in any order, grouped query heads,
// sinks, windows, contexts that end inside a page, BF16 and FP8 pages.
//
// Keys that a row may not see (before its window, after its position) point where the queries point: a kernel
// that lets one in is off by far more than rounding.
#include "backend/cuda/ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/ops/select.h"
#include "backend/cuda/testing/on_device.h"

namespace moesaic::cuda {
namespace {

struct Case {
  int head_dim, heads, kv_heads;
  bool fp8 = false;
  int window = 0;
  std::vector<int> tokens;  // of each sequence
  int rows = 1;             // the last ones of each; 1: decoding
};

// Sequences with their keys and values, as floats and in pages.
class Cache {
 public:
  Cache(const Case& c, std::mt19937& rng) : case_(c) {
    int pages = 0;
    for (const int n : c.tokens) {
      first_page_.push_back(pages), pages += (n + kPageTokens - 1) / kPageTokens;
    }
    table_.resize(pages);
    std::iota(table_.begin(), table_.end(), 0);
    std::ranges::shuffle(table_, rng);
    const size_t values = static_cast<size_t>(pages) * kPageTokens * c.kv_heads * c.head_dim;
    k_.resize(values), v_.resize(values);
    std::normal_distribution<float> normal;
    for (float& x : k_) x = stored(normal(rng));
    for (float& x : v_) x = stored(normal(rng));
  }

  float k(int sequence, int token, int kv_head, int d) const {
    return k_[value_at(sequence, token, kv_head, d)];
  }
  float v(int sequence, int token, int kv_head, int d) const {
    return v_[value_at(sequence, token, kv_head, d)];
  }
  void set_key(int sequence, int token, float value) {
    for (int h = 0; h < case_.kv_heads; ++h) {
      for (int d = 0; d < case_.head_dim; ++d) k_[value_at(sequence, token, h, d)] = stored(value);
    }
  }
  int room(int sequence) const {  // tokens of its pages
    return (case_.tokens[sequence] + kPageTokens - 1) / kPageTokens * kPageTokens;
  }

  int table_of(int sequence) const { return first_page_[sequence]; }
  const std::vector<int>& tables() const { return table_; }
  template <typename T>
  std::vector<T> pages(bool values) const {
    std::vector<T> out(k_.size());
    for (size_t s = 0; s < case_.tokens.size(); ++s) {
      for (int token = 0; token < room(static_cast<int>(s)); ++token) {
        for (int h = 0; h < case_.kv_heads; ++h) {
          for (int d = 0; d < case_.head_dim; ++d) {
            const size_t at = value_at(static_cast<int>(s), token, h, d);
            out[page_at(static_cast<int>(s), token, h) + inner_at(values, token % kPageTokens, d)] =
                coded<T>(values ? v_[at] : k_[at]);
          }
        }
      }
    }
    return out;
  }

 private:
  float stored(float x) const {
    return case_.fp8 ? mx::decode_e4m3(mx::encode_e4m3(x)) : mx::decode_bf16(mx::encode_bf16(x));
  }
  template <typename T>
  static T coded(float x) {
    if constexpr (sizeof(T) == 1) return mx::encode_e4m3(x);
    return static_cast<T>(mx::encode_bf16(x));
  }
  size_t value_at(int sequence, int token, int kv_head, int d) const {
    const size_t place = static_cast<size_t>(first_page_[sequence]) * kPageTokens + token;
    return (place * case_.kv_heads + kv_head) * case_.head_dim + d;
  }
  size_t page_at(int sequence, int token, int kv_head) const {
    const size_t page = table_[first_page_[sequence] + token / kPageTokens];
    return (page * case_.kv_heads + kv_head) * kPageTokens * case_.head_dim;
  }
  int inner_at(bool values, int token, int d) const {
    if (case_.fp8) return values ? v8_at(token, d) : k8_at(case_.head_dim, token, d);
    return values ? v_at(token, d) : k_at(case_.head_dim, token, d);
  }

  Case case_;
  std::vector<int> first_page_, table_;
  std::vector<float> k_, v_;  // [sequence, token of its pages, kv_head, d]
};

struct Problem {
  Case c;
  Cache cache;
  std::vector<float> sinks;
  std::vector<uint16_t> q;    // [rows of all sequences, heads, head_dim] BF16
  std::vector<int> at;        // [rows] the sequence
  std::vector<int> position;  // [rows]

  Problem(const Case& of, std::mt19937& rng) : c(of), cache(of, rng) {
    std::normal_distribution<float> normal;
    for (int h = 0; h < c.heads; ++h) sinks.push_back(2 * normal(rng));
    for (int s = 0; s < std::ssize(c.tokens); ++s) {
      for (int i = c.tokens[s] - c.rows; i < c.tokens[s]; ++i) at.push_back(s), position.push_back(i);
      forbid(s);
    }
    q.resize(at.size() * c.heads * c.head_dim);
    for (uint16_t& x : q) x = mx::encode_bf16(0.7f + normal(rng));
  }
  // All of a query's dimensions are positive on the mean, and so are these keys'. Tokens that one row of a
  // prompt sees, and another does not, stay as they are.
  void forbid(int s) {
    for (int token = c.tokens[s]; token < cache.room(s); ++token) cache.set_key(s, token, 3);
    const int first_seen = c.window > 0 ? c.tokens[s] - c.rows - c.window + 1 : 0;
    for (int token = 0; token < first_seen; ++token) cache.set_key(s, token, 3);
  }

  // out[d] of a row's head, and sum of weight * |v|: what relative errors of weights can change.
  void reference(size_t row, int head, std::vector<double>& out, std::vector<double>& size) const {
    const int s = at[row], last = position[row], group = c.heads / c.kv_heads, kv = head / group;
    const int first = c.window > 0 ? std::max(0, last - c.window + 1) : 0;
    std::vector<double> score(last - first + 1);
    double top = sinks[head];
    for (int j = first; j <= last; ++j) {
      double sum = 0;
      for (int d = 0; d < c.head_dim; ++d)
        sum += double{mx::decode_bf16(q[(row * c.heads + head) * c.head_dim + d])} * cache.k(s, j, kv, d);
      score[j - first] = sum / std::sqrt(c.head_dim);
      top = std::max(top, score[j - first]);
    }
    double total = std::exp(sinks[head] - top);
    out.assign(c.head_dim, 0), size.assign(c.head_dim, 0);
    for (int j = first; j <= last; ++j) {
      const double weight = std::exp(score[j - first] - top);
      total += weight;
      for (int d = 0; d < c.head_dim; ++d) {
        const double v = cache.v(s, j, kv, d);
        out[d] += weight * v, size[d] += weight * std::fabs(v);
      }
    }
    for (int d = 0; d < c.head_dim; ++d) out[d] /= total, size[d] /= total;
  }

  std::vector<RowTile> tiles(int most) const {
    std::vector<RowTile> tiles;
    for (int row = 0; row < std::ssize(at); row += tiles.back().count) {
      const int left = c.rows - row % c.rows;
      RowTile tile{
          .row = row, .count = std::min(most, left), .position = position[row], .written = position[row]};
      tile.table[0] = tile.table[1] = cache.table_of(at[row]);
      tiles.push_back(tile);
    }
    return tiles;
  }
};

class AttentionTest : public sm120::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    int minor = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major_, cudaDevAttrComputeCapabilityMajor, 0), 0);
    ASSERT_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), 0);
    if (major_ < 9) GTEST_SKIP() << "attention needs compute capability 9.0";
    targets_ = {target_of(major_, minor, {}), target_of(major_, minor, {.portable = true}),
                target_of(major_, minor, {.batch_invariant = true})};
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
    const auto k =
        c.fp8 ? sm120::upload(p.cache.pages<uint8_t>(false)) : sm120::upload(p.cache.pages<uint16_t>(false));
    const auto v =
        c.fp8 ? sm120::upload(p.cache.pages<uint8_t>(true)) : sm120::upload(p.cache.pages<uint16_t>(true));
    const auto q = sm120::upload(p.q);
    const auto sinks = sm120::upload(p.sinks);
    const auto tables = sm120::upload(p.cache.tables());
    const std::vector<RowTile> tiles = p.tiles(decode ? 1 : tile_tokens(c.heads, c.kv_heads));
    const auto tile_list = sm120::upload(tiles);
    const DeviceBuffer out = sm120::poisoned(p.q.size() * 2);
    const int most = *std::ranges::max_element(c.tokens);
    const Attention a{.q = q.as<__nv_bfloat16>(),
                      .k = k.as<void>(),
                      .v = v.as<void>(),
                      .fp8 = c.fp8,
                      .sinks = sinks.as<float>(),
                      .pages = tables.as<int32_t>(),
                      .heads = c.heads,
                      .kv_heads = c.kv_heads,
                      .head_dim = c.head_dim,
                      .window = c.window,
                      .sliding = c.window > 0,
                      .out = out.as<void>(),
                      .bf16 = bf16,
                      .tiles = tile_list.as<RowTile>(),
                      .tile_count = static_cast<int>(tiles.size()),
                      .kv_splits = kv_splits_of((most + kPageTokens - 1) / kPageTokens)};
    const Status status = attend(a, decode, target, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    compare(p, sm120::download<uint16_t>(out, p.q.size()), bf16,
            target.portable ? "portable"
            : decode        ? "decode"
                            : "prefill");
  }

  // Weights are rounded to 8 bits, and the result to 8 (BF16) or 11.
  void compare(const Problem& p, const std::vector<uint16_t>& out, bool bf16, const char* kernel) {
    std::vector<double> want, size;
    for (size_t row = 0; row < p.at.size(); ++row) {
      for (int head = 0; head < p.c.heads; ++head) {
        p.reference(row, head, want, size);
        for (int d = 0; d < p.c.head_dim; ++d) {
          const uint16_t code = out[(row * p.c.heads + head) * p.c.head_dim + d];
          const double got = bf16 ? mx::decode_bf16(code) : mx::decode_f16(code);
          const double bound = 0x1p-8 * (size[d] + std::fabs(want[d])) + 1e-6;
          ASSERT_LE(std::fabs(got - want[d]), bound)
              << kernel << " row " << row << " head " << head << " dimension " << d << ": " << got
              << " instead of " << want[d];
        }
      }
    }
  }

  std::mt19937 rng_{7};
  int major_ = 0;
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
