// Attention problems with their result in double: pages in any order, grouped query heads, sinks, windows,
// contexts that end inside a page, BF16 and FP8 pages.
//
// Keys that a row may not see (before its window, after its position) point where the queries point: a kernel
// that lets one in is off by far more than rounding.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/testing/on_device.h"
#include "mx/formats.h"

namespace moesaic::cuda {

struct Case {
  int head_dim, heads, kv_heads;
  bool fp8 = false;
  int window = 0;
  std::vector<int> tokens;  // tokens of each sequence
  int rows = 1;             // the last ones of each; 1: decoding
  float growth = 0;         // the keys, and so the scores, grow by so much from token to token
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
    for (size_t i = 0; i < values; ++i) {
      const auto place = static_cast<int>(i / (c.kv_heads * c.head_dim));
      const int sequence =
          static_cast<int>(std::ranges::upper_bound(first_page_, place / kPageTokens) - first_page_.begin()) -
          1;
      const int token = place - first_page_[sequence] * kPageTokens;
      k_[i] = stored((1 + c.growth * static_cast<float>(token)) * normal(rng));
    }
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
  // Keys that no row may see get dimensions of 3, and a query's are positive on the mean, so that such a key
  // would have a large score. Keys that some rows of a prompt see stay as they are.
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

  // Weights are rounded to 8 bits, and the result to 8 (BF16) or 11. out: [rows, heads, head_dim]
  void compare(const std::vector<uint16_t>& out, bool bf16, const char* kernel) const {
    std::vector<double> want, size;
    for (size_t row = 0; row < at.size(); ++row) {
      for (int head = 0; head < c.heads; ++head) {
        reference(row, head, want, size);
        for (int d = 0; d < c.head_dim; ++d) {
          const uint16_t code = out[(row * c.heads + head) * c.head_dim + d];
          const double got = bf16 ? mx::decode_bf16(code) : mx::decode_f16(code);
          const double bound = 0x1p-8 * (size[d] + std::fabs(want[d])) + 1e-6;
          ASSERT_LE(std::fabs(got - want[d]), bound)
              << kernel << " row " << row << " head " << head << " dimension " << d << ": " << got
              << " instead of " << want[d];
        }
      }
    }
  }
};

// A problem's buffers, with its rows in tiles of at most `most`.
class Uploaded {
 public:
  Uploaded(const Problem& p, int most)
      : problem_(p),
        tile_list_(p.tiles(most)),
        k_(pages(false)),
        v_(pages(true)),
        q_(sm120::upload(p.q)),
        sinks_(sm120::upload(p.sinks)),
        tables_(sm120::upload(p.cache.tables())),
        tiles_(sm120::upload(tile_list_)),
        out_(sm120::poisoned(p.q.size() * sizeof(uint16_t))) {}

  Attention attention(bool bf16) const {
    const Case& c = problem_.c;
    return {.q = q_.as<__nv_bfloat16>(),
            .k = k_.as<void>(),
            .v = v_.as<void>(),
            .fp8 = c.fp8,
            .sinks = sinks_.as<float>(),
            .pages = tables_.as<int32_t>(),
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .window = c.window,
            .sliding = c.window > 0,
            .out = out_.as<void>(),
            .bf16 = bf16,
            .tiles = tiles_.as<RowTile>(),
            .tile_count = static_cast<int>(tile_list_.size())};
  }
  std::vector<uint16_t> out() const { return sm120::download<uint16_t>(out_, problem_.q.size()); }

 private:
  DeviceBuffer pages(bool values) const {
    const Cache& cache = problem_.cache;
    return problem_.c.fp8 ? sm120::upload(cache.pages<uint8_t>(values))
                          : sm120::upload(cache.pages<uint16_t>(values));
  }

  const Problem& problem_;
  std::vector<RowTile> tile_list_;
  DeviceBuffer k_, v_, q_, sinks_, tables_, tiles_, out_;
};

}  // namespace moesaic::cuda
