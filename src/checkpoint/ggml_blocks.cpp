#include "checkpoint/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "checkpoint/ggml_bytes.h"
#include "checkpoint/iq_blocks.h"
#include "core/q8_0.h"

namespace moesaic {
namespace {

constexpr int kQ8Block = 34, kSuperBlock = 256;

// Nibble of element i < 32.
int nibble(const uint8_t* codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }

// The block's own scale, and its values as integers.
template <typename Value>
void keep(const uint8_t* scale, uint8_t* out, Value&& value) {
  std::memcpy(out, scale, 2);
  for (int i = 0; i < mx::kBlock; ++i) out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(value(i)));
}

// Values that Q8_0 does not hold: rounded.
void round_to_q8_0(const float* values, uint8_t* out) {
  const uint16_t scale = quantize_q8_0(values, reinterpret_cast<int8_t*>(out + 2));
  std::memcpy(out, &scale, 2);
}
template <typename Value>
void round_block(uint8_t* out, Value&& value) {
  float values[mx::kBlock];
  for (int i = 0; i < mx::kBlock; ++i) values[i] = value(i);
  round_to_q8_0(values, out);
}

// d, codes: d (q - 8)
void q4_0(const uint8_t* b, uint8_t* out) {
  keep(b, out, [&](int i) { return nibble(b + 2, i) - 8; });
}
// d, m, codes: d q + m
void q4_1(const uint8_t* b, uint8_t* out) {
  const float d = f16_at(b), m = f16_at(b + 2);
  round_block(out, [&](int i) { return d * static_cast<float>(nibble(b + 4, i)) + m; });
}
// d, a word of fifth bits, codes: d (q - 16)
void q5_0(const uint8_t* b, uint8_t* out) {
  const uint32_t high = word_at(b + 2);
  keep(b, out, [&](int i) { return (nibble(b + 6, i) | static_cast<int>(high >> i & 1) << 4) - 16; });
}
// d, m, a word of fifth bits, codes: d q + m
void q5_1(const uint8_t* b, uint8_t* out) {
  const float d = f16_at(b), m = f16_at(b + 2);
  const uint32_t high = word_at(b + 4);
  round_block(out, [&](int i) {
    return d * static_cast<float>(nibble(b + 8, i) | static_cast<int>(high >> i & 1) << 4) + m;
  });
}
// d, codes: d table[q]
constexpr std::array<int, 16> kIq4Levels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};
void iq4_nl(const uint8_t* b, uint8_t* out) {
  keep(b, out, [&](int i) { return kIq4Levels[nibble(b + 2, i)]; });
}
// d, bits of 128 elements: d or -d
void q1_0(const uint8_t* b, uint8_t* out) {
  for (int block = 0; block < 4; ++block)
    keep(b, out + block * kQ8Block,
         [&](int i) { return (b[2 + block * 4 + i / 8] >> (i % 8) & 1) != 0 ? 1 : -1; });
}
// d, codes of 64 elements, four in a byte: d (q - 1)
void q2_0(const uint8_t* b, uint8_t* out) {
  for (int block = 0; block < 2; ++block)
    keep(b, out + block * kQ8Block,
         [&](int i) { return (b[2 + block * 8 + i / 4] >> (2 * (i % 4)) & 3) - 1; });
}

// Scale and minimum of sub-block s < 8, six bits each, of twelve bytes: the first four have those of s < 4 in
// their low bits, the second four the minima; the last four have the low halves of the others, whose high
// bits stand above the first eight.
struct ScaleMin {
  int scale, min;
};
ScaleMin scale_min(const uint8_t* p, int s) {
  if (s < 4) return {p[s] & 63, p[s + 4] & 63};
  return {(p[s + 4] & 15) | p[s - 4] >> 6 << 4, p[s + 4] >> 4 | p[s] >> 6 << 4};
}

// d, dmin, 12 bytes of scales, (Q5_K: 32 bytes of fifth bits, bit s of byte i for element i of sub-block s,)
// 128 bytes of codes, 32 for two sub-blocks: the even one in the low nibbles. d scale q - dmin min
template <bool kFive>
void k_block(const uint8_t* b, uint8_t* out) {
  const float d = f16_at(b), dmin = f16_at(b + 2);
  const uint8_t *high = b + 16, *codes = b + (kFive ? 48 : 16);
  for (int s = 0; s < kSuperBlock / mx::kBlock; ++s) {
    const ScaleMin sm = scale_min(b + 4, s);
    const float scale = d * static_cast<float>(sm.scale), min = dmin * static_cast<float>(sm.min);
    round_block(out + s * kQ8Block, [&](int i) {
      const int byte = codes[s / 2 * 32 + i], low = s % 2 == 0 ? byte & 15 : byte >> 4;
      const int q = kFive ? low | (high[i] >> s & 1) << 4 : low;
      return scale * static_cast<float>(q) - min;
    });
  }
}

// 128 bytes of low halves, 64 of upper two bits, 16 signed scales (of 16 elements each), d: d scale (q - 32).
// In each half of the block, sub-block s < 4 has its low halves in bytes 32 (s % 2) .. + 31, low nibbles for
// s < 2, and its upper bits in bits 2 s of 32 bytes.
void q6_k(const uint8_t* b, uint8_t* out) {
  const auto* scales = reinterpret_cast<const int8_t*>(b + 192);
  const float d = f16_at(b + 208);
  for (int block = 0; block < kSuperBlock / mx::kBlock; ++block) {
    const int half = block / 4, s = block % 4;
    const uint8_t *low = b + half * 64 + s % 2 * 32, *high = b + 128 + half * 32;
    round_block(out + block * kQ8Block, [&](int i) {
      const int q = (s < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * s) & 3) << 4;
      const int scale = half * 8 + s * 2 + i / 16;
      return d * static_cast<float>(scales[scale]) * static_cast<float>(q - 32);
    });
  }
}

// Codes of two bits of a super-block: in each half of it, block s < 4 has bits 2 s of 32 bytes.
int two_bits(const uint8_t* codes, int block, int i) {
  return codes[block / 4 * 32 + i] >> (2 * (block % 4)) & 3;
}

// 16 bytes of scales (low) and minima (high), of 16 elements each, 64 bytes of codes, d, dmin:
// d scale q - dmin min
void q2_k(const uint8_t* b, uint8_t* out) {
  const float d = f16_at(b + 80), dmin = f16_at(b + 82);
  for (int block = 0; block < kSuperBlock / mx::kBlock; ++block) {
    round_block(out + block * kQ8Block, [&](int i) {
      const uint8_t scale = b[2 * block + i / 16];
      return d * static_cast<float>(scale & 15) * static_cast<float>(two_bits(b + 16, block, i)) -
             dmin * static_cast<float>(scale >> 4);
    });
  }
}

// Scale s < 16 of Q3_K, six bits of twelve bytes: low halves in eight, the upper bits of four scales in each
// of the last four.
int q3_k_scale(const uint8_t* p, int s) {
  return (p[s % 8] >> (s / 8 * 4) & 15) | (p[8 + s % 4] >> (s / 4 * 2) & 3) << 4;
}
// 32 bytes of third bits, bit s of byte i for element i of block s, 64 bytes of codes, 12 of scales, d:
// d (scale - 32) (q - 4)
void q3_k(const uint8_t* b, uint8_t* out) {
  const float d = f16_at(b + 108);
  for (int block = 0; block < kSuperBlock / mx::kBlock; ++block) {
    round_block(out + block * kQ8Block, [&](int i) {
      const int q = two_bits(b + 32, block, i) | (b[i] >> block & 1) << 2;
      return d * static_cast<float>(q3_k_scale(b + 96, 2 * block + i / 16) - 32) * static_cast<float>(q - 4);
    });
  }
}

// d, upper two bits of eight scales, 4 bytes of their lower four, 128 bytes of codes: d (scale - 32) table[q]
void iq4_xs(const uint8_t* b, uint8_t* out) {
  for (int block = 0; block < kSuperBlock / mx::kBlock; ++block) {
    const int scale = (b[4 + block / 2] >> (block % 2 * 4) & 15) | (half_at(b + 2) >> (2 * block) & 3) << 4;
    const float step = f16_at(b) * static_cast<float>(scale - 32);
    round_block(out + block * kQ8Block,
                [&](int i) { return step * static_cast<float>(kIq4Levels[nibble(b + 8 + block * 16, i)]); });
  }
}

// Digit n < 5 of a byte that holds five of base 3, as the fraction byte / 256.
int ternary(uint8_t byte, int n) {
  constexpr int kPowers[] = {1, 3, 9, 27, 81};
  return static_cast<uint8_t>(byte * kPowers[n]) * 3 >> 8;
}
// 32 bytes with digits n of elements 32 n + j, 16 with those of 160 + 16 n + j, 4 with those of 240 + 4 n +
// j, d: d (digit - 1)
void tq1_0(const uint8_t* b, uint8_t* out) {
  const auto digit = [b](int e) {
    if (e < 160) return ternary(b[e % 32], e / 32);
    if (e < 240) return ternary(b[32 + (e - 160) % 16], (e - 160) / 16);
    return ternary(b[48 + (e - 240) % 4], (e - 240) / 4);
  };
  for (int block = 0; block < kSuperBlock / mx::kBlock; ++block)
    keep(b + 52, out + block * kQ8Block, [&](int i) { return digit(block * mx::kBlock + i) - 1; });
}
// 64 bytes of codes, d: d (q - 1)
void tq2_0(const uint8_t* b, uint8_t* out) {
  for (int block = 0; block < kSuperBlock / mx::kBlock; ++block)
    keep(b + 64, out + block * kQ8Block, [&](int i) { return two_bits(b, block, i) - 1; });
}

template <void (*kDecode)(const uint8_t*, float*)>
void rounded(const uint8_t* b, uint8_t* out) {
  float values[kSuperBlock];
  kDecode(b, values);
  for (int block = 0; block < kSuperBlock / mx::kBlock; ++block)
    round_to_q8_0(values + block * mx::kBlock, out + block * kQ8Block);
}

constexpr GgmlBlocks kBlocks[] = {
    {2, "Q4_0", 32, 18, true, q4_0},
    {3, "Q4_1", 32, 20, false, q4_1},
    {6, "Q5_0", 32, 22, true, q5_0},
    {7, "Q5_1", 32, 24, false, q5_1},
    {10, "Q2_K", kSuperBlock, 84, false, q2_k},
    {11, "Q3_K", kSuperBlock, 110, false, q3_k},
    {12, "Q4_K", kSuperBlock, 144, false, k_block<false>},
    {13, "Q5_K", kSuperBlock, 176, false, k_block<true>},
    {14, "Q6_K", kSuperBlock, 210, false, q6_k},
    {16, "IQ2_XXS", kSuperBlock, 66, false, rounded<decode_iq2_xxs>},
    {17, "IQ2_XS", kSuperBlock, 74, false, rounded<decode_iq2_xs>},
    {18, "IQ3_XXS", kSuperBlock, 98, false, rounded<decode_iq3_xxs>},
    {19, "IQ1_S", kSuperBlock, 50, false, rounded<decode_iq1_s>},
    {20, "IQ4_NL", 32, 18, true, iq4_nl},
    {21, "IQ3_S", kSuperBlock, 110, false, rounded<decode_iq3_s>},
    {22, "IQ2_S", kSuperBlock, 82, false, rounded<decode_iq2_s>},
    {23, "IQ4_XS", kSuperBlock, 136, false, iq4_xs},
    {29, "IQ1_M", kSuperBlock, 56, false, rounded<decode_iq1_m>},
    {34, "TQ1_0", kSuperBlock, 54, true, tq1_0},
    {35, "TQ2_0", kSuperBlock, 66, true, tq2_0},
    {41, "Q1_0", 128, 18, true, q1_0},
    {42, "Q2_0", 64, 18, true, q2_0},
};

}  // namespace

std::span<const GgmlBlocks> ggml_blocks() { return kBlocks; }

const GgmlBlocks* find_ggml_blocks(std::string_view name) {
  const auto* const found = std::ranges::find(kBlocks, name, &GgmlBlocks::name);
  return found != std::end(kBlocks) ? found : nullptr;
}

}  // namespace moesaic
