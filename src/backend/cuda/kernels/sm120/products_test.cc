// Every tile against loops in double, on a device: weights exact, activations of the same rounding, so that
// only the order of sums differs. All tiles must give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm120/repack_quads.h"
#include "backend/cuda/testing/on_device.h"
#include "mx/block.h"

namespace moesaic::cuda::sm120 {
namespace {

constexpr float kAlpha = 1.702f, kLimit = 7.0f;

// [experts, rows, cols] as Hugging Face packs them, and the numbers.
struct Experts {
  int rows = 0, cols = 0;
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;
  DeviceBuffer device_codes, device_scales;

  Experts(int experts, int r, int c, std::mt19937& rng) : rows(r), cols(c) {
    const size_t blocks = static_cast<size_t>(experts) * rows * cols / mx::kBlock;
    codes.resize(blocks * mx::kPackedBlock), scales.resize(blocks), values.resize(blocks * mx::kBlock);
    for (uint8_t& v : codes) v = static_cast<uint8_t>(rng());
    for (uint8_t& v : scales) v = static_cast<uint8_t>(116 + rng() % 8);
    for (size_t b = 0; b < blocks; ++b)
      mx::dequantize_mxfp4(codes.data() + b * mx::kPackedBlock, scales[b], values.data() + b * mx::kBlock);
    device_codes = upload(codes), device_scales = upload(scales);
  }
  Raw raw() const {
    const int64_t row = cols / 2, scale_row = cols / mx::kBlock;
    return {.format = Format::kMxfp4,
            .rows = rows,
            .row_stride = row,
            .scale_stride = scale_row,
            .data = device_codes.as<uint8_t>(),
            .scales = device_scales.as<uint8_t>(),
            .expert_stride = rows * row,
            .expert_scale_stride = rows * scale_row};
  }
  const float* row(int expert, int r) const { return values.data() + (int64_t{expert} * rows + r) * cols; }
};

DeviceBuffer packed(const std::vector<const Experts*>& sources, int experts, int* fault) {
  const Experts& first = *sources[0];
  const int64_t rows = static_cast<int64_t>(sources.size()) * first.rows;
  RepackParams p{.source = {first.raw(), sources.back()->raw()},
                 .kind = Kind::kMxfp4Quads,
                 .order = sources.size() == 2 ? RowOrder::kPairs : RowOrder::kPlain,
                 .rows = rows,
                 .weight_tiles = rows / kWeightTileRows,
                 .blocks = first.cols / kBlock,
                 .experts = experts};
  DeviceBuffer out =
      poisoned(experts * p.weight_tiles * weight_tile_bytes(Element::kE2M1, first.cols / kBlock));
  p.data = out.as<uint8_t>(), p.fault = fault;
  EXPECT_TRUE(sm120::repack(p, nullptr).ok());
  return out;
}

struct Shape {
  int hidden, intermediate;
  std::vector<int> counts;  // permuted rows of each expert
};

// Leaves the rounding error in x; fills in the codes, a byte each, and returns the scale.
uint8_t quantise(float* x, uint8_t (&codes)[kBlock]) {
  const uint8_t scale = mx::quantize_mxfp8(x, codes);
  mx::dequantize_mxfp8(codes, scale, x);
  return scale;
}

// One layer's experts, random, with their permuted rows.
class Layer {
 public:
  Layer(const Shape& s, uint32_t seed)
      : shape(s),
        experts(static_cast<int>(s.counts.size())),
        rng(seed),
        gate(experts, s.intermediate, s.hidden, rng),
        up(experts, s.intermediate, s.hidden, rng),
        down(experts, s.hidden, s.intermediate, rng) {
    for (const int n : s.counts) permuted_rows += n;
    x.resize(static_cast<size_t>(kRows) * s.hidden);
    std::normal_distribution<float> normal;
    for (uint16_t& v : x) v = mx::encode_bf16(normal(rng) * (rng() % 50 == 0 ? 30.0f : 1.0f));
    for (int i = 0; i < s.hidden && i < 32; ++i) x[i] = 0;  // a block of zeros
    for (int i = 0; i < permuted_rows; ++i) rows.push_back(static_cast<int32_t>(rng() % kRows));
    gate_bias = biases(s.intermediate), up_bias = biases(s.intermediate), down_bias = biases(s.hidden);
    fault = DeviceBuffer::allocate(sizeof(int), "test").value();
    gate_up = packed({&gate, &up}, experts, fault.as<int>());
    down_packed = packed({&down}, experts, fault.as<int>());
    d_x = upload(x), d_rows = upload(rows.empty() ? std::vector<int32_t>{0} : rows);
    d_gate_bias = upload(gate_bias), d_up_bias = upload(up_bias), d_down_bias = upload(down_bias);
  }
  std::vector<WorkTile> work_tiles(int tile) const {
    std::vector<WorkTile> list;
    int first = 0, start = 0;
    for (int e = 0; e < experts; ++e) {
      for (int left = shape.counts[e]; left > 0; left -= tile) {
        const int n = std::min(left, tile);
        list.push_back({e, first, n, start});
        first += n, start += n == tile ? tile : tile_width(n);
      }
    }
    return list;
  }
  // A permuted row as the products see it: the sum of its parts.
  std::vector<float> quantised(int permuted_row, int parts) const {
    std::vector<float> v(shape.hidden);
    for (int i = 0; i < shape.hidden; ++i)
      v[i] = mx::decode_bf16(x[static_cast<size_t>(rows[permuted_row]) * shape.hidden + i]);
    std::vector<float> sum(shape.hidden);
    for (int part = 0; part < parts; ++part) {
      std::vector<float> rounded = v;
      for (int b = 0; b < shape.hidden; b += mx::kBlock) {
        uint8_t codes[kBlock];
        quantise(rounded.data() + b, codes);
      }
      for (int i = 0; i < shape.hidden; ++i) sum[i] += rounded[i], v[i] -= rounded[i];
    }
    return sum;
  }

  static constexpr int kRows = 37;
  Shape shape;
  int experts, permuted_rows = 0;
  std::mt19937 rng;
  Experts gate, up, down;
  std::vector<uint16_t> x;
  std::vector<int32_t> rows;
  std::vector<float> gate_bias, up_bias, down_bias;
  DeviceBuffer fault, gate_up, down_packed, d_x, d_rows, d_gate_bias, d_up_bias, d_down_bias;

 private:
  std::vector<float> biases(int n) {
    std::normal_distribution<float> normal;
    std::vector<float> b(static_cast<size_t>(experts) * n);
    for (float& v : b) v = 0.3f * normal(rng);
    return b;
  }
};

// The operator's products by one tile.
struct Outcome {
  int parts = 1;
  std::vector<WorkTile> work_tiles;
  std::vector<uint8_t> x, h;  // tokens, as bytes
  std::vector<float> out;     // [permuted_rows, hidden]
};

Outcome run(const Layer& l, Tile tile, int parts) {
  Outcome r{.parts = parts};
  const int tokens = tile_tokens(tile) / parts;
  r.work_tiles = l.work_tiles(tokens);
  const std::vector<WorkTile> some = r.work_tiles.empty() ? std::vector<WorkTile>{{}} : r.work_tiles;
  const DeviceBuffer work_tiles = upload(some),
                     count = upload(std::vector<int>{static_cast<int>(r.work_tiles.size())});
  const size_t x_bytes = token_buffer_bytes(l.permuted_rows, l.experts, l.shape.hidden, parts),
               h_bytes = token_buffer_bytes(l.permuted_rows, l.experts, l.shape.intermediate, parts);
  const size_t out_count = static_cast<size_t>(l.permuted_rows) * l.shape.hidden;
  const DeviceBuffer x_data = poisoned(x_bytes), h_data = poisoned(h_bytes),
                     out = poisoned(out_count * 4 + 4);
  // One work tile more than there are: the list's length is known on the device only.
  Tokens x{.data = x_data.as<uint8_t>(),
           .cols = l.shape.hidden,
           .work_tiles = work_tiles.as<WorkTile>(),
           .work_tile_count = count.as<int>(),
           .most_work_tiles = static_cast<int>(r.work_tiles.size()) + 1,
           .tile = tokens,
           .parts = parts};
  EXPECT_TRUE(expand(l.d_x.as<__nv_bfloat16>(), l.d_rows.as<int32_t>(), x, nullptr).ok());
  const QuadWeights fc1{l.gate_up.as<uint8_t>(), 2 * l.shape.intermediate / kWeightTileRows},
      fc2{l.down_packed.as<uint8_t>(), l.shape.hidden / kWeightTileRows};
  const SwiGluMx swiglu{.out = h_data.as<uint8_t>(),
                        .intermediate = l.shape.intermediate,
                        .gate_bias = l.d_gate_bias.as<float>(),
                        .up_bias = l.d_up_bias.as<float>(),
                        .alpha = kAlpha,
                        .limit = kLimit};
  EXPECT_TRUE(gemm(fc1, x, tile, swiglu, nullptr).ok());
  Tokens h = x;
  h.data = h_data.as<uint8_t>(), h.cols = l.shape.intermediate;
  EXPECT_TRUE(gemm(fc2, h, tile,
                   Store{.out = out.as<float>(),
                         .stride = l.shape.hidden,
                         .bias = l.d_down_bias.as<float>(),
                         .rows = l.shape.hidden},
                   nullptr)
                  .ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  r.x = download<uint8_t>(x_data, x_bytes), r.h = download<uint8_t>(h_data, h_bytes);
  r.out = download<float>(out, out_count);
  return r;
}

// The token of a permuted row out of a buffer: codes and scales, part by part, and the sum of its parts.
struct QuantisedRow {
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;
};
QuantisedRow row_of(const std::vector<uint8_t>& bytes, int parts, const WorkTile& work_tile, int permuted_row,
                    int cols) {
  const int place = work_tile.start + permuted_row - work_tile.first, blocks = cols / kBlock;
  QuantisedRow r{.values = std::vector<float>(cols)};
  for (int part = 0; part < parts; ++part) {
    const uint8_t* group = bytes.data() + (place / kGroup * parts + part) * group_bytes(blocks);
    for (int b = 0; b < blocks; ++b) {
      r.scales.push_back(group[token_scale_at(place % kGroup, b)]);
      for (int k = 0; k < kBlock; ++k) {
        r.codes.push_back(group[token_bytes_at(place % kGroup, b, k / 8) + k % 8]);
        r.values[b * kBlock + k] += mx::decode_e4m3(r.codes.back()) * mx::decode_e8m0(r.scales.back());
      }
    }
  }
  return r;
}

void expect_expanded(const Layer& l, const Outcome& r) {
  for (const WorkTile& work_tile : r.work_tiles) {
    for (int permuted_row = work_tile.first; permuted_row < work_tile.first + work_tile.count; ++permuted_row)
      ASSERT_EQ(row_of(r.x, r.parts, work_tile, permuted_row, l.shape.hidden).values,
                l.quantised(permuted_row, r.parts))
          << permuted_row;
  }
}

double swiglu_of(const Layer& l, int expert, int i, const std::vector<float>& x) {
  const size_t at = static_cast<size_t>(expert) * l.shape.intermediate + i;
  const Dot g = dot(l.gate.row(expert, i), x.data(), l.shape.hidden),
            u = dot(l.up.row(expert, i), x.data(), l.shape.hidden);
  const double gate = std::min<double>(g.sum + l.gate_bias[at], kLimit),
               up = std::clamp<double>(u.sum + l.up_bias[at], -kLimit, kLimit);
  return gate / (1 + std::exp(-double{kAlpha} * gate)) * (up + 1);
}

// GEMM 1: codes may differ by one where the exact value is near the middle of two; two parts are within half
// a step of the second one.
void expect_first_product(const Layer& l, const Outcome& r) {
  const double share = 0.13, least = 0x1p-9;
  int64_t other = 0, all = 0;
  for (const WorkTile& work_tile : r.work_tiles) {
    for (int permuted_row = work_tile.first; permuted_row < work_tile.first + work_tile.count;
         ++permuted_row) {
      const std::vector<float> x = l.quantised(permuted_row, r.parts);
      const QuantisedRow got = row_of(r.h, r.parts, work_tile, permuted_row, l.shape.intermediate);
      std::vector<float> want(l.shape.intermediate);
      for (int i = 0; i < l.shape.intermediate; ++i)
        want[i] = static_cast<float>(swiglu_of(l, work_tile.expert, i, x));
      for (int b = 0; b < l.shape.intermediate / kBlock; ++b) {
        uint8_t codes[kBlock];
        float rounded[kBlock];
        std::copy_n(want.begin() + b * kBlock, kBlock, rounded);
        const uint8_t scale = quantise(rounded, codes);
        for (int k = 0; r.parts == 2 && k < kBlock; ++k) {
          const float near = want[b * kBlock + k];
          ASSERT_NEAR(got.values[b * kBlock + k], near,
                      0x1p-8 * std::fabs(near) + 0x1p-14 * mx::decode_e8m0(scale))
              << permuted_row << " " << b;
        }
        for (int k = 0; r.parts == 1 && k < kBlock; ++k, ++all) {
          if (scale == got.scales[b] && codes[k] == got.codes[b * kBlock + k]) continue;
          ++other;
          // A step, or what saturates where the scale came out one lower.
          const float near = want[b * kBlock + k];
          ASSERT_NEAR(got.values[b * kBlock + k], near,
                      share * std::fabs(near) + least * mx::decode_e8m0(scale))
              << permuted_row << " " << b;
        }
      }
    }
  }
  EXPECT_LE(other, all / 200 + 2);
}

void expect_second_product(const Layer& l, const Outcome& r) {
  for (const WorkTile& work_tile : r.work_tiles) {
    for (int permuted_row = work_tile.first; permuted_row < work_tile.first + work_tile.count;
         ++permuted_row) {
      const QuantisedRow h = row_of(r.h, r.parts, work_tile, permuted_row, l.shape.intermediate);
      for (int i = 0; i < l.shape.hidden; ++i) {
        const Dot d = dot(l.down.row(work_tile.expert, i), h.values.data(), l.shape.intermediate);
        const double bias = l.down_bias[static_cast<size_t>(work_tile.expert) * l.shape.hidden + i];
        ASSERT_NEAR(r.out[static_cast<size_t>(permuted_row) * l.shape.hidden + i], d.sum + bias,
                    d.bound(l.shape.intermediate) + 0x1p-22 * std::fabs(bias))
            << permuted_row << " " << i;
      }
    }
  }
}

// The first product's codes and scales of every permuted row: where a token stands depends on the tile.
std::vector<uint8_t> hidden_of(const Layer& l, const Outcome& r) {
  std::vector<uint8_t> all;
  for (const WorkTile& work_tile : r.work_tiles) {
    for (int permuted_row = work_tile.first; permuted_row < work_tile.first + work_tile.count;
         ++permuted_row) {
      const QuantisedRow row = row_of(r.h, r.parts, work_tile, permuted_row, l.shape.intermediate);
      all.insert(all.end(), row.codes.begin(), row.codes.end());
      all.insert(all.end(), row.scales.begin(), row.scales.end());
    }
  }
  return all;
}

class Products : public OnDevice {
 protected:
  static void check(const Shape& shape, uint32_t seed) {
    const Layer layer(shape, seed);
    ASSERT_EQ(download<int>(layer.fault, 1)[0], 0);
    for (const int parts : {1, 2}) check(layer, parts);
  }
  static void check(const Layer& layer, int parts) {
    Outcome first;
    for (const Tile tile : kTiles) {
      if (tile_tokens(tile) < kGroup * parts) continue;
      SCOPED_TRACE(testing::Message() << "tile " << static_cast<int>(tile) << ", parts " << parts);
      Outcome r = run(layer, tile, parts);
      expect_expanded(layer, r);
      if (first.out.empty() && first.h.empty()) {
        expect_first_product(layer, r);
        expect_second_product(layer, r);
        first = std::move(r);
        continue;
      }
      EXPECT_EQ(hidden_of(layer, first), hidden_of(layer, r));
      EXPECT_EQ(std::memcmp(first.out.data(), r.out.data(), r.out.size() * 4), 0);
    }
  }
};

TEST_F(Products, OneToken) { check({96, 32, {0, 1, 0}}, 1); }
TEST_F(Products, OddBlocks) { check({32, 160, {3, 0, 9, 17}}, 2); }
TEST_F(Products, EveryTileFullAndMore) { check({288, 96, {8, 16, 33, 64, 65, 128, 129, 0, 1}}, 3); }
TEST_F(Products, AllTokensOnOneExpert) { check({160, 224, {0, 0, 300, 0}}, 4); }
TEST_F(Products, NoTokens) { check({64, 64, {0, 0}}, 5); }
TEST_F(Products, GptOss) { check({2880, 2880, {1, 0, 5, 12}}, 6); }

}  // namespace
}  // namespace moesaic::cuda::sm120
