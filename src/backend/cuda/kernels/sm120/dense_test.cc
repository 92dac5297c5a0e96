// Dense layers through the block-scaled MMA against loops in double, on a device: BF16 weights that the
// upload rounds to MXFP8 or MXFP4, activations that norm_expand() or expand() rounds to MXFP8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm120/repack_quads.h"
#include "backend/cuda/layout/kv_page.h"
#include "backend/cuda/testing/on_device.h"

namespace moesaic::cuda::sm120 {
namespace {

using Values = std::vector<float>;

std::vector<uint16_t> random_bf16(size_t count, float size, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> v(count);
  for (uint16_t& x : v) x = mx::encode_bf16(size * normal(rng) * (rng() % 50 == 0 ? 30.0f : 1.0f));
  return v;
}
Values random_values(size_t count, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  Values v(count);
  for (float& x : v) x = normal(rng);
  return v;
}

Values rounded(const std::vector<uint16_t>& bf16, Element element) {
  Values v(bf16.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = mx::decode_bf16(bf16[i]);
  for (size_t i = 0; i < v.size(); i += mx::kBlock) {
    uint8_t codes[mx::kBlock];
    if (element == Element::kE4M3) {
      const uint8_t scale = mx::quantize_mxfp8(v.data() + i, codes);
      mx::dequantize_mxfp8(codes, scale, v.data() + i);
    } else {
      const uint8_t scale = mx::quantize_mxfp4(v.data() + i, codes);
      mx::dequantize_mxfp4(codes, scale, v.data() + i);
    }
  }
  return v;
}

// [rows, cols], packed as the loader does.
struct Packed {
  int rows, cols;
  Element element;
  Values values;
  DeviceBuffer data;
  QuadWeights weights;

  Packed(int r, int c, Element e, RowOrder order, int head_dim, std::mt19937& rng)
      : rows(r), cols(c), element(e) {
    const std::vector<uint16_t> bf16 = random_bf16(static_cast<size_t>(rows) * cols, 0.1f, rng);
    values = rounded(bf16, element);
    const DeviceBuffer source = upload(bf16), fault = upload(std::vector<int>{0});
    const int64_t weight_tiles = weight_tiles_of(rows);
    data = DeviceBuffer::allocate(weight_tiles * weight_tile_bytes(element, cols / kBlock), "test").value();
    weights = {data.as<uint8_t>(), static_cast<int>(weight_tiles), element};
    const RepackParams p{.source = {{.format = Format::kBF16,
                                     .rows = rows,
                                     .row_stride = 2 * cols,
                                     .data = source.as<uint8_t>()}},
                         .kind = element == Element::kE4M3 ? Kind::kMxfp8Quads : Kind::kMxfp4Quads,
                         .order = order,
                         .head_dim = head_dim,
                         .rows = rows,
                         .weight_tiles = weight_tiles,
                         .blocks = cols / kBlock,
                         .experts = 1,
                         .data = data.as<uint8_t>(),
                         .fault = fault.as<int>()};
    EXPECT_TRUE(sm120::repack(p, nullptr).ok());
    EXPECT_EQ(download<int>(fault, 1)[0], 0);
  }
  Dot at(int row, const float* x) const { return dot(values.data() + int64_t{row} * cols, x, cols); }
};

class Dense : public OnDevice, public testing::WithParamInterface<Element> {};
INSTANTIATE_TEST_SUITE_P(Dense, Dense, testing::Values(Element::kE2M1, Element::kE4M3));

// Expanded activations of `count` rows, and their values.
struct Input {
  DeviceBuffer room;
  Tokens tokens;
  Values values;
  Input(int count, int cols, std::mt19937& rng) : room(poisoned(token_buffer_bytes(count, 1, cols))) {
    const std::vector<uint16_t> x = random_bf16(static_cast<size_t>(count) * cols, 1.0f, rng);
    const DeviceBuffer device = upload(x);
    values = rounded(x, Element::kE4M3);
    tokens = dense_tokens(room.as<void>(), cols, count, 1);
    EXPECT_TRUE(expand(device.as<__nv_bfloat16>(), nullptr, tokens, nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
};

// A matrix whose last weight tile is not whole, with and without bias and residual; tokens around every tile.
// One token has the same bits in any batch.
TEST_P(Dense, RowsWithBiasAndResidual) {
  constexpr int kRows = 333, kStride = 340;
  for (const int cols : {32, 288, 2880}) {
    std::mt19937 rng(11);
    const Packed w(kRows, cols, GetParam(), RowOrder::kPlain, 0, rng);
    const Values bias = random_values(kRows, rng);
    const DeviceBuffer d_bias = upload(bias);
    Values first;
    for (const int count : {1, 8, 9, 17, 33, 64, 65, 513}) {
      std::mt19937 same(12);
      const Input x(count, cols, same);
      for (const bool add : {false, true}) {
        const Values before = random_values(static_cast<size_t>(count) * kStride, same);
        const DeviceBuffer out = upload(before);
        ASSERT_TRUE(gemm(w.weights, x.tokens, dense_tile(count, 1),
                         Store{.out = out.as<float>(),
                               .stride = kStride,
                               .bias = add ? d_bias.as<float>() : nullptr,
                               .rows = kRows,
                               .add = add},
                         nullptr)
                        .ok());
        const Values got = download<float>(out, before.size());
        for (int t = 0; t < count; ++t) {
          for (int r = 0; r < kStride; ++r) {
            const size_t at = static_cast<size_t>(t) * kStride + r;
            if (r >= kRows) {
              ASSERT_EQ(got[at], before[at]) << "what is no row is not written";
              continue;
            }
            const Dot d = w.at(r, x.values.data() + static_cast<int64_t>(t) * cols);
            const double rest = add ? double{bias[r]} + before[at] : 0;
            ASSERT_NEAR(got[at], d.sum + rest, d.bound(cols) + 0x1p-22 * (std::fabs(d.sum) + 8))
                << cols << " " << count << " " << t << " " << r;
          }
        }
        if (add) continue;
        if (first.empty()) first.assign(got.begin(), got.begin() + kRows);
        EXPECT_EQ(std::memcmp(first.data(), got.data(), kRows * sizeof(float)), 0) << count;
      }
    }
  }
}

struct Heads {
  static constexpr int kDim = 64, kQuery = 6, kKv = 2, kCols = 160, kPages = 4;
  static constexpr int kRows = (kQuery + 2 * kKv) * kDim;
};

// Q in its rows, K and V in pages, rotated as RoPE does.
TEST_P(Dense, HeadsWithRotation) {
  using H = Heads;
  std::mt19937 rng(13);
  const Packed w(H::kRows, H::kCols, GetParam(), RowOrder::kHeads, H::kDim, rng);
  const Values bias = random_values(H::kRows, rng);
  for (const int count : {1, 11, 30, 70}) {
    const Input x(count, H::kCols, rng);
    std::vector<float2> rotation(static_cast<size_t>(count) * H::kDim / 2);
    for (float2& r : rotation) {
      const double angle = static_cast<double>(rng()) / 1e8;
      r = {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
    }
    std::vector<int32_t> slots(H::kPages * kPageTokens);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    std::shuffle(slots.begin(), slots.end(), rng);
    constexpr size_t kPageValues = static_cast<size_t>(H::kPages) * H::kKv * kPageTokens * H::kDim;
    const size_t q_values = static_cast<size_t>(count) * H::kQuery * H::kDim;
    const DeviceBuffer d_bias = upload(bias), d_rotation = upload(rotation), d_slots = upload(slots),
                       q = poisoned(2 * q_values), k = poisoned(2 * kPageValues),
                       v = poisoned(2 * kPageValues);
    ASSERT_TRUE(gemm(w.weights, x.tokens, dense_tile(count, 1),
                     Qkv{.bias = d_bias.as<float>(),
                         .head_dim = H::kDim,
                         .heads = H::kQuery,
                         .kv_heads = H::kKv,
                         .rotation = d_rotation.as<float2>(),
                         .q = q.as<__nv_bfloat16>(),
                         .k = k.as<void>(),
                         .v = v.as<void>(),
                         .slots = d_slots.as<int32_t>()},
                     nullptr)
                    .ok());
    const auto got_q = download<uint16_t>(q, q_values), got_k = download<uint16_t>(k, kPageValues),
               got_v = download<uint16_t>(v, kPageValues);
    for (int t = 0; t < count; ++t) {
      const float* row = x.values.data() + static_cast<int64_t>(t) * H::kCols;
      for (int head = 0; head < H::kRows / H::kDim; ++head) {
        const int kv = (head - H::kQuery) % H::kKv;
        const bool query = head < H::kQuery, key = !query && head < H::kQuery + H::kKv;
        const size_t page =
            (static_cast<size_t>(slots[t] / kPageTokens) * H::kKv + kv) * kPageTokens * H::kDim;
        const auto got = [&](int d) {
          const int slot = slots[t] % kPageTokens;
          if (query) return got_q[(static_cast<size_t>(t) * H::kQuery + head) * H::kDim + d];
          return key ? got_k[page + k_at(H::kDim, slot, d)] : got_v[page + v_at(slot, d)];
        };
        for (int d = 0; d < H::kDim / 2; ++d) {
          const int r0 = head * H::kDim + d, r1 = r0 + H::kDim / 2;
          const Dot a = w.at(r0, row), b = w.at(r1, row);
          const double v0 = a.sum + bias[r0], v1 = b.sum + bias[r1];
          const float2 turn =
              query || key ? rotation[static_cast<size_t>(t) * H::kDim / 2 + d] : float2{1, 0};
          const double want[2] = {v0 * turn.x - v1 * turn.y, v1 * turn.x + v0 * turn.y};
          const double bound = a.bound(H::kCols) + b.bound(H::kCols) + 1e-6 * (std::fabs(v0) + std::fabs(v1));
          for (int half = 0; half < 2; ++half)
            ASSERT_NEAR(mx::decode_bf16(got(d + half * H::kDim / 2)), want[half],
                        bound + 0x1p-8 * std::fabs(want[half]))
                << count << " " << t << " head " << head << " " << d;
        }
      }
    }
  }
}

// In one pass the bytes of norm() and expand(), for rows in any order.
TEST_F(OnDevice, NormExpandIsNormThenExpand) {
  std::mt19937 rng(14);
  for (const int cols : {32, 96, 2880}) {
    constexpr int kCount = 13;
    const Values x = random_values(static_cast<size_t>(kCount) * cols, rng),
                 weight = random_values(cols, rng);
    std::vector<int32_t> map(kCount);
    for (int i = 0; i < kCount; ++i) map[i] = (5 * i + 3) % kCount;
    const size_t bytes = token_buffer_bytes(kCount, 1, cols, 2);
    const DeviceBuffer d_x = upload(x), d_weight = upload(weight), d_map = upload(map),
                       fault = upload(std::vector<int>{0}), normed = poisoned(2 * x.size()),
                       two = poisoned(bytes), one = poisoned(bytes);
    const Norm n{.x = d_x.as<float>(),
                 .row_map = d_map.as<int32_t>(),
                 .rows = kCount,
                 .hidden = cols,
                 .eps = 1e-5f,
                 .weight = d_weight.as<float>(),
                 .out = normed.as<void>(),
                 .fault = fault.as<int>()};
    ASSERT_TRUE(norm(n, nullptr).ok());
    ASSERT_TRUE(
        expand(normed.as<__nv_bfloat16>(), nullptr, dense_tokens(two.as<void>(), cols, kCount, 2), nullptr)
            .ok());
    ASSERT_TRUE(norm_expand(n, dense_tokens(one.as<void>(), cols, kCount, 2), nullptr).ok());
    const auto want = download<uint8_t>(two, bytes), got = download<uint8_t>(one, bytes);
    for (int i = 0; i < 2 * kCount; ++i) {  // the parts of a token
      const int t = i / 2;
      const int64_t group = (2 * (t / kGroup) + i % 2) * group_bytes(cols / kBlock);
      for (int k = 0; k < cols; ++k) {
        const int64_t at = group + token_bytes_at(t % kGroup, k / kBlock, k % kBlock / 8) + k % 8,
                      scale = group + token_scale_at(t % kGroup, k / kBlock);
        ASSERT_EQ(got[at], want[at]) << cols << " " << t << " " << k;
        ASSERT_EQ(got[scale], want[scale]) << cols << " " << t << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda::sm120
