// The layouts against the block-scaled MMA's registers on the host: packed, read back through the fragment
// maps and multiplied, they give the product.
#include "backend/cuda/layout/quad_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "backend/cuda/kernels/sm120/block_scaled_mma.h"
#include "mx/block.h"

namespace moesaic::cuda::sm120 {
namespace {

// Codes and scales of a matrix, row by row.
struct Plain {
  int rows, blocks;
  std::vector<uint8_t> codes, scales;
  uint8_t code(int row, int column) const { return codes[row * blocks * kBlock + column]; }
  uint8_t scale(int row, int block) const { return scales[row * blocks + block]; }
};
Plain random_matrix(int rows, int blocks, int codes, std::mt19937& rng) {
  Plain m{rows, blocks, std::vector<uint8_t>(rows * blocks * kBlock), std::vector<uint8_t>(rows * blocks)};
  for (uint8_t& c : m.codes) {
    c = static_cast<uint8_t>(rng() % codes);
    if (codes == 256 && (c & 0x7F) == 0x7F) c = 0;  // E4M3's NaN
  }
  for (uint8_t& s : m.scales) s = static_cast<uint8_t>(110 + rng() % 30);
  return m;
}

uint32_t word_at(const std::vector<uint8_t>& bytes, int64_t at) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + at, 4);
  return word;
}

std::vector<uint8_t> pack_weight_tile(Element element, const Plain& m) {
  std::vector<uint8_t> out(weight_tile_bytes(element, m.blocks));
  for (int block = 0; block < m.blocks; ++block) {
    for (int row = 0; row < kWeightTileRows; ++row) {
      out[weight_scale_at(element, row, block)] = m.scale(row, block);
      for (int k = 0; k < kBlock; ++k) {
        const int lane = row % 8 * 4 + k / 8, tile = row / 16, j = k / 4 % 2;
        if (element == Element::kE4M3) {
          out[weight_word_at(block, lane, tile, j, row / 8 % 2) + k % 4] = m.code(row, block * kBlock + k);
          continue;
        }
        const int64_t at = weight_word_at(block, lane, tile, j);
        const uint32_t word =
            word_at(out, at) | weight_bits(m.code(row, block * kBlock + k), row / 8 % 2, k % 4);
        std::memcpy(out.data() + at, &word, 4);
      }
    }
  }
  return out;
}
std::vector<uint8_t> pack_group(const Plain& m) {
  std::vector<uint8_t> out(group_bytes(m.blocks));
  for (int block = 0; block < m.blocks; ++block) {
    for (int token = 0; token < kGroup; ++token) {
      out[token_scale_at(token, block)] = m.scale(token, block);
      for (int k = 0; k < kBlock; ++k)
        out[token_bytes_at(token, block, k / 8) + k % 8] = m.code(token, block * kBlock + k);
    }
  }
  return out;
}

// The kernels' way, on the host: a warp's registers of tile m in the step of `block`.
struct Source {
  Element a;
  const std::vector<uint8_t>&weight_tile, &group;

  uint32_t weights(int block, int lane, int m, int j, int h) const {
    if (a == Element::kE4M3) return word_at(weight_tile, weight_word_at(block, lane, m, j, h));
    return containers(word_at(weight_tile, weight_word_at(block, lane, m, j)), h);
  }
  uint32_t tokens(int block, int lane, int j) const {
    return word_at(group, token_bytes_at(lane / 4, block, lane % 4) + 4 * j);
  }
  WarpOperands registers(int block, int m, int column) const {
    WarpOperands in;
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int j = 0; j < 2; ++j) {
        for (int h = 0; h < 2; ++h) in.a[lane][2 * j + h] = weights(block, lane, m, j, h);
        in.b[lane][j] = tokens(block, lane, j);
      }
      in.scales_a[lane] =
          word_at(weight_tile, static_cast<int64_t>(block / kQuad) * weight_tile_quad_bytes(a) + 4 * lane);
      // Lanes of other groups hold theirs.
      in.scales_b[lane] =
          lane % 4 == column ? word_at(group, token_scale_at(lane / 4, block / kQuad * kQuad)) : 0xA5A5A5A5;
    }
    return in;
  }
};

double decode(Element e, uint8_t code) {
  return e == Element::kE4M3 ? mx::decode_e4m3(code) : mx::decode_e2m1(code);
}

class Elements : public testing::TestWithParam<Element> {};
INSTANTIATE_TEST_SUITE_P(Layout, Elements, testing::Values(Element::kE2M1, Element::kE4M3));

TEST_P(Elements, GiveTheProductThroughTheFragmentMaps) {
  const Element a = GetParam();
  const int codes = a == Element::kE4M3 ? 256 : 16;
  std::mt19937 rng(5);
  for (const int blocks : {1, 2, 3, 4, 5, 90}) {
    const Plain w = random_matrix(kWeightTileRows, blocks, codes, rng),
                x = random_matrix(kGroup, blocks, 256, rng);
    const std::vector<uint8_t> weight_tile = pack_weight_tile(a, w), group = pack_group(x);
    for (int m = 0; m < 2; ++m) {
      for (int block = 0; block < blocks; ++block) {
        const int column = block % 4;  // the lane of the quad that has the scales
        WarpSums d{};
        mma_on_host(a, Source{a, weight_tile, group}.registers(block, m, column), block % kQuad, m, column,
                    d);
        for (int r = 0; r < 16; ++r) {
          for (int n = 0; n < kGroup; ++n) {
            double want = 0;
            for (int k = block * kBlock; k < (block + 1) * kBlock; ++k)
              want += decode(a, w.code(16 * m + r, k)) * mx::decode_e4m3(x.code(n, k)) *
                      mx::decode_e8m0(w.scale(16 * m + r, k / kBlock)) *
                      mx::decode_e8m0(x.scale(n, k / kBlock));
            EXPECT_EQ(d[4 * (r % 8) + n / 2][r / 8 * 2 + n % 2], static_cast<float>(want)) << blocks;
          }
        }
      }
    }
  }
}

// Nothing stands where something else does, and nothing is wasted but the scales of a last quad.
TEST_P(Elements, FillTheBytes) {
  const Element e = GetParam();
  for (const int blocks : {1, 3, 4, 90}) {
    std::set<int64_t> bytes;
    for (int block = 0; block < blocks; ++block) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int i = 0; i < 32; ++i) {
          const int m = i / 4 % 2, j = i / 8 % 2, h = i / 16;
          bytes.insert((e == Element::kE4M3 ? weight_word_at(block, lane, m, j, h)
                                            : weight_word_at(block, lane, m, j)) +
                       i % 4);
        }
      }
      for (int row = 0; row < kWeightTileRows; ++row) bytes.insert(weight_scale_at(e, row, block));
    }
    EXPECT_EQ(bytes.size(), static_cast<size_t>(blocks) * (block_bytes(e) + kWeightTileRows));
    EXPECT_EQ(*bytes.rbegin() + 1, weight_tile_bytes(e, blocks));
    EXPECT_EQ(weight_tile_bytes(e, blocks) - static_cast<int64_t>(bytes.size()),
              (4 - blocks % 4) % 4 * kWeightTileRows);
  }
}

TEST(Layout, OfTokensFillsTheBytes) {
  for (const int blocks : {1, 3, 4, 90}) {
    std::set<int64_t> bytes, scales;
    for (int block = 0; block < blocks; ++block) {
      for (int token = 0; token < kGroup; ++token) {
        scales.insert(token_scale_at(token, block));
        for (int k = 0; k < kBlock; ++k) bytes.insert(token_bytes_at(token, block, k / 8) + k % 8);
      }
    }
    EXPECT_EQ(bytes.size(), static_cast<size_t>(blocks) * kGroup * kBlock);
    EXPECT_EQ(scales.size(), static_cast<size_t>(blocks) * kGroup);
    for (const int64_t at : scales) EXPECT_FALSE(bytes.count(at)) << at;
    EXPECT_EQ(*scales.rbegin() + kQuad - (blocks - 1) % kQuad, group_bytes(blocks));
  }
}

TEST_P(Elements, AreCopiedByMultiplesOfSixteenBytes) {
  for (int blocks = 1; blocks <= kQuad; ++blocks) EXPECT_EQ(quad_bytes(GetParam(), blocks) % 16, 0);
  EXPECT_EQ(weight_tile_quad_bytes(GetParam()) % 16, 0);
  EXPECT_EQ(kGroupQuadBytes % 16, 0);
}

TEST(Layout, TakesWhatTheFormatsTake) {
  EXPECT_EQ(weight_tile_bytes(Element::kE2M1, 90), 90 * 512 + 23 * 128);
  EXPECT_EQ(weight_tile_bytes(Element::kE4M3, 90), 90 * 1024 + 23 * 128);
  EXPECT_EQ(kGroupQuadBytes, 1056);
}

}  // namespace
}  // namespace moesaic::cuda::sm120
