// Every tile against loops in double, on a device: weights exact, activations of the same rounding, so that
// only the order of sums differs. All tiles must give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/testing/on_device.h"
#include "backend/cuda/weights/repack_quads.h"
#include "mx/block.h"

namespace moesaic::cuda::sm120a {
namespace {

constexpr Tile kAllTiles[] = {Tile::k8,   Tile::k16,      Tile::k32,         Tile::k64,
                              Tile::k128, Tile::kPrefill, Tile::kCapacity128};
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
                 .order = sources.size() == 2 ? Rows::kPairs : Rows::kPlain,
                 .rows = rows,
                 .units = rows / kUnit,
                 .blocks = first.cols / kBlock,
                 .experts = experts};
  DeviceBuffer out = poisoned(experts * p.units * unit_bytes(Element::kE2M1, first.cols / kBlock));
  p.data = out.as<uint8_t>(), p.fault = fault;
  EXPECT_TRUE(sm120a::repack(p, nullptr).ok());
  return out;
}

struct Shape {
  int hidden, intermediate;
  std::vector<int> counts;  // slots of each expert
};

// What is left of a block, and its codes, a byte each; the scale.
uint8_t quantise(Element tokens, float* x, uint8_t (&codes)[kBlock]) {
  if (tokens == Element::kE4M3) {
    const uint8_t scale = mx::quantize_mxfp8(x, codes);
    mx::dequantize_mxfp8(codes, scale, x);
    return scale;
  }
  uint8_t packed[mx::kPackedBlock];
  const uint8_t scale = mx::quantize_mxfp4(x, packed);
  mx::dequantize_mxfp4(packed, scale, x);
  for (int i = 0; i < kBlock; ++i) codes[i] = packed[i / 2] >> (4 * (i % 2)) & 15;
  return scale;
}

// One layer's experts, random, with their slots; tokens: what activations are rounded to.
class Layer {
 public:
  Layer(const Shape& s, Element t, uint32_t seed)
      : shape(s),
        tokens(t),
        experts(static_cast<int>(s.counts.size())),
        rng(seed),
        gate(experts, s.intermediate, s.hidden, rng),
        up(experts, s.intermediate, s.hidden, rng),
        down(experts, s.hidden, s.intermediate, rng) {
    for (const int n : s.counts) slots += n;
    x.resize(static_cast<size_t>(kRows) * s.hidden);
    std::normal_distribution<float> normal;
    for (uint16_t& v : x) v = mx::encode_bf16(normal(rng) * (rng() % 50 == 0 ? 30.0f : 1.0f));
    for (int i = 0; i < s.hidden && i < 32; ++i) x[i] = 0;  // a block of zeros
    for (int i = 0; i < slots; ++i) rows.push_back(static_cast<int32_t>(rng() % kRows));
    gate_bias = biases(s.intermediate), up_bias = biases(s.intermediate), down_bias = biases(s.hidden);
    fault = DeviceBuffer::allocate(sizeof(int), "test").value();
    gate_up = packed({&gate, &up}, experts, fault.as<int>());
    down_packed = packed({&down}, experts, fault.as<int>());
    d_x = upload(x), d_rows = upload(rows.empty() ? std::vector<int32_t>{0} : rows);
    d_gate_bias = upload(gate_bias), d_up_bias = upload(up_bias), d_down_bias = upload(down_bias);
  }
  std::vector<Job> jobs(int tile) const {
    std::vector<Job> list;
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
  // Row of a slot as the products see it.
  std::vector<float> quantised(int slot) const {
    std::vector<float> v(shape.hidden);
    for (int i = 0; i < shape.hidden; ++i)
      v[i] = mx::decode_bf16(x[static_cast<size_t>(rows[slot]) * shape.hidden + i]);
    for (int b = 0; b < shape.hidden; b += mx::kBlock) {
      uint8_t codes[kBlock];
      quantise(tokens, v.data() + b, codes);
    }
    return v;
  }

  static constexpr int kRows = 37;
  Shape shape;
  Element tokens;
  int experts, slots = 0;
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
  std::vector<Job> jobs;
  std::vector<uint8_t> x, h;        // tokens, as bytes
  std::vector<__nv_bfloat16> wide;  // [slots, intermediate]
  std::vector<float> out;           // [slots, hidden]
};

Outcome run(const Layer& l, Tile tile) {
  Outcome r;
  r.jobs = l.jobs(tile_tokens(tile));
  const std::vector<Job> some = r.jobs.empty() ? std::vector<Job>{{}} : r.jobs;
  const DeviceBuffer jobs = upload(some), count = upload(std::vector<int>{static_cast<int>(r.jobs.size())});
  const size_t x_bytes = token_buffer_bytes(l.slots, l.experts, l.shape.hidden),
               h_bytes = token_buffer_bytes(l.slots, l.experts, l.shape.intermediate);
  const size_t wide_count = static_cast<size_t>(l.slots) * l.shape.intermediate,
               out_count = static_cast<size_t>(l.slots) * l.shape.hidden;
  const DeviceBuffer x_data = poisoned(x_bytes), h_data = poisoned(h_bytes),
                     wide = poisoned(wide_count * 2 + 2), out = poisoned(out_count * 4 + 4);
  // One job more than there are: the list's length is known on the device only.
  Tokens x{.data = x_data.as<uint8_t>(),
           .cols = l.shape.hidden,
           .jobs = jobs.as<Job>(),
           .job_count = count.as<int>(),
           .most_jobs = static_cast<int>(r.jobs.size()) + 1,
           .tile = tile_tokens(tile),
           .element = l.tokens};
  EXPECT_TRUE(expand(l.d_x.as<__nv_bfloat16>(), l.d_rows.as<int32_t>(), x, nullptr).ok());
  const Weights fc1{l.gate_up.as<uint8_t>(), 2 * l.shape.intermediate / kUnit},
      fc2{l.down_packed.as<uint8_t>(), l.shape.hidden / kUnit};
  SwiGluMx swiglu{.bf16 = wide.as<__nv_bfloat16>(),
                  .intermediate = l.shape.intermediate,
                  .gate_bias = l.d_gate_bias.as<float>(),
                  .up_bias = l.d_up_bias.as<float>(),
                  .alpha = kAlpha,
                  .limit = kLimit};
  EXPECT_TRUE(gemm(fc1, x, tile, swiglu, nullptr).ok());
  swiglu.bf16 = nullptr, swiglu.out = h_data.as<uint8_t>();
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
  r.wide = download<__nv_bfloat16>(wide, wide_count), r.out = download<float>(out, out_count);
  return r;
}

// A slot's token out of a buffer: codes and scales, row by row.
struct Row {
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;
};
Row row_of(Element tokens, const std::vector<uint8_t>& bytes, const Job& job, int slot, int cols) {
  const int place = job.start + slot - job.first, blocks = cols / kBlock;
  const bool wide = tokens == Element::kE4M3;
  const uint8_t* group = bytes.data() + place / kGroup * group_bytes(tokens, blocks);
  Row r{std::vector<uint8_t>(cols), std::vector<uint8_t>(blocks), std::vector<float>(cols)};
  for (int b = 0; b < blocks; ++b) {
    r.scales[b] = group[token_scale_at(tokens, place % kGroup, b)];
    for (int k = 0; k < kBlock; ++k) {
      const int at = b * kBlock + k, bit = token_bit(tokens, k);
      const uint8_t byte = group[token_bytes_at(tokens, place % kGroup, b, k / 8) + bit / 8];
      r.codes[at] = wide ? byte : byte >> (bit % 8) & 15;
      r.values[at] =
          (wide ? mx::decode_e4m3(r.codes[at]) : mx::decode_e2m1(r.codes[at])) * mx::decode_e8m0(r.scales[b]);
    }
  }
  return r;
}

void expect_expanded(const Layer& l, const Outcome& r) {
  for (const Job& job : r.jobs) {
    for (int slot = job.first; slot < job.first + job.count; ++slot)
      ASSERT_EQ(row_of(l.tokens, r.x, job, slot, l.shape.hidden).values, l.quantised(slot)) << slot;
  }
}

struct Swiglu {
  double value, bound;
};
Swiglu swiglu_of(const Layer& l, int expert, int i, const std::vector<float>& x) {
  const size_t at = static_cast<size_t>(expert) * l.shape.intermediate + i;
  const Dot g = dot(l.gate.row(expert, i), x.data(), l.shape.hidden),
            u = dot(l.up.row(expert, i), x.data(), l.shape.hidden);
  const double gate = std::min<double>(g.sum + l.gate_bias[at], kLimit),
               up = std::clamp<double>(u.sum + l.up_bias[at], -kLimit, kLimit);
  const double swish = gate / (1 + std::exp(-double{kAlpha} * gate));
  // The slope of the first factor is at most 1.1.
  return {swish * (up + 1), 1.1 * g.bound(l.shape.hidden) * std::fabs(up + 1) +
                                std::fabs(swish) * u.bound(l.shape.hidden) +
                                1e-5 * std::fabs(swish * (up + 1)) + 1e-30};
}

// GEMM 1 as BF16 and as tokens: codes may differ by one where the exact value is near the middle of two.
void expect_first_product(const Layer& l, const Outcome& r) {
  const bool wide = l.tokens == Element::kE4M3;
  const double share = wide ? 0.13 : 0.26, least = wide ? 0x1p-9 : 0.5;
  int64_t other = 0, all = 0;
  for (const Job& job : r.jobs) {
    for (int slot = job.first; slot < job.first + job.count; ++slot) {
      const std::vector<float> x = l.quantised(slot);
      const Row got = row_of(l.tokens, r.h, job, slot, l.shape.intermediate);
      std::vector<float> want(l.shape.intermediate);
      for (int i = 0; i < l.shape.intermediate; ++i) {
        const Swiglu s = swiglu_of(l, job.expert, i, x);
        want[i] = static_cast<float>(s.value);
        const float bf16 = __bfloat162float(r.wide[static_cast<size_t>(slot) * l.shape.intermediate + i]);
        ASSERT_NEAR(bf16, s.value, s.bound + 0x1p-8 * std::fabs(s.value)) << slot << " " << i;
      }
      for (int b = 0; b < l.shape.intermediate / kBlock; ++b) {
        uint8_t codes[kBlock];
        float rounded[kBlock];
        std::copy_n(want.begin() + b * kBlock, kBlock, rounded);
        const uint8_t scale = quantise(l.tokens, rounded, codes);
        for (int k = 0; k < kBlock; ++k, ++all) {
          if (scale == got.scales[b] && codes[k] == got.codes[b * kBlock + k]) continue;
          ++other;
          // A step, or what saturates where the scale came out one lower.
          const float near = want[b * kBlock + k];
          ASSERT_NEAR(got.values[b * kBlock + k], near,
                      share * std::fabs(near) + least * mx::decode_e8m0(scale))
              << slot << " " << b;
        }
      }
    }
  }
  EXPECT_LE(other, all / 200 + 2);
}

void expect_second_product(const Layer& l, const Outcome& r) {
  for (const Job& job : r.jobs) {
    for (int slot = job.first; slot < job.first + job.count; ++slot) {
      const Row h = row_of(l.tokens, r.h, job, slot, l.shape.intermediate);
      for (int i = 0; i < l.shape.hidden; ++i) {
        const Dot d = dot(l.down.row(job.expert, i), h.values.data(), l.shape.intermediate);
        const double bias = l.down_bias[static_cast<size_t>(job.expert) * l.shape.hidden + i];
        ASSERT_NEAR(r.out[static_cast<size_t>(slot) * l.shape.hidden + i], d.sum + bias,
                    d.bound(l.shape.intermediate) + 0x1p-22 * std::fabs(bias))
            << slot << " " << i;
      }
    }
  }
}

class Products : public OnDevice, public testing::WithParamInterface<Element> {
 protected:
  static void check(const Shape& shape, uint32_t seed) {
    const Layer layer(shape, GetParam(), seed);
    ASSERT_EQ(download<int>(layer.fault, 1)[0], 0);
    Outcome first;
    for (const Tile tile : kAllTiles) {
      SCOPED_TRACE(testing::Message() << "tile " << static_cast<int>(tile));
      Outcome r = run(layer, tile);
      expect_expanded(layer, r);
      if (tile == Tile::k8) {
        expect_first_product(layer, r);
        expect_second_product(layer, r);
        first = std::move(r);
        continue;
      }
      EXPECT_EQ(std::memcmp(first.wide.data(), r.wide.data(), r.wide.size() * 2), 0);
      EXPECT_EQ(std::memcmp(first.out.data(), r.out.data(), r.out.size() * 4), 0);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Tokens, Products, testing::Values(Element::kE4M3, Element::kE2M1));

TEST_P(Products, OneToken) { check({96, 32, {0, 1, 0}}, 1); }
TEST_P(Products, OddBlocks) { check({32, 160, {3, 0, 9, 17}}, 2); }
TEST_P(Products, EveryTileFullAndMore) { check({288, 96, {8, 16, 33, 64, 65, 128, 129, 0, 1}}, 3); }
TEST_P(Products, AllTokensOnOneExpert) { check({160, 224, {0, 0, 300, 0}}, 4); }
TEST_P(Products, NoTokens) { check({64, 64, {0, 0}}, 5); }
TEST_P(Products, GptOss) { check({2880, 2880, {1, 0, 5, 12}}, 6); }

TEST_P(Products, AtomicsCombineWhatStoreLeaves) {
  const Layer l({96, 64, {5, 0, 9, 22}}, GetParam(), 7);
  const Outcome r = run(l, Tile::k16);
  // Rows and slots as a top-1 of distinct rows would have them.
  std::vector<int32_t> rows(l.slots), slots(l.slots);
  std::vector<float> weights(l.slots), want(r.out.size());
  for (int s = 0; s < l.slots; ++s) rows[s] = l.slots - 1 - s, slots[rows[s]] = s;
  for (int i = 0; i < l.slots; ++i) weights[i] = 0.01f * static_cast<float>(i + 1);
  for (int s = 0; s < l.slots; ++s) {
    for (int i = 0; i < 96; ++i)
      want[static_cast<size_t>(rows[s]) * 96 + i] = weights[rows[s]] * r.out[static_cast<size_t>(s) * 96 + i];
  }
  const DeviceBuffer jobs = upload(r.jobs), count = upload(std::vector<int>{static_cast<int>(r.jobs.size())}),
                     h = upload(r.h), d_rows = upload(rows), d_slots = upload(slots),
                     d_weights = upload(weights), out = poisoned(want.size() * 4),
                     identity = poisoned(rows.size() * 4), ones = poisoned(rows.size() * 4);
  ASSERT_TRUE(
      zero_fill(out.as<float>(), l.slots, 96, identity.as<int32_t>(), ones.as<float>(), nullptr).ok());
  const Tokens x{.data = h.as<uint8_t>(),
                 .cols = 64,
                 .jobs = jobs.as<Job>(),
                 .job_count = count.as<int>(),
                 .most_jobs = static_cast<int>(r.jobs.size()),
                 .tile = 16,
                 .element = l.tokens};
  ASSERT_TRUE(gemm({l.down_packed.as<uint8_t>(), 3}, x, Tile::k16,
                   AtomicCombine{.out = out.as<float>(),
                                 .hidden = 96,
                                 .top_k = 1,
                                 .bias = l.d_down_bias.as<float>(),
                                 .slot_rows = d_rows.as<int32_t>(),
                                 .slots = d_slots.as<int32_t>(),
                                 .weights = d_weights.as<float>()},
                   nullptr)
                  .ok());
  EXPECT_EQ(download<float>(out, want.size()), want);
  EXPECT_EQ(download<int32_t>(identity, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(download<float>(ones, 3), (std::vector<float>{1, 1, 1}));
}

}  // namespace
}  // namespace moesaic::cuda::sm120a
