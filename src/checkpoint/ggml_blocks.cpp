#include "checkpoint/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/q8_0.h"

namespace moesaic {
namespace {

constexpr int kQ8Block = 34, kSuperBlock = 256;

uint16_t half_at(const uint8_t* p) {
  uint16_t code;
  std::memcpy(&code, p, sizeof code);
  return code;
}
float f16_at(const uint8_t* p) { return mx::decode_f16(half_at(p)); }
uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Nibble of element i < 32.
int nibble(const uint8_t* codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }

// The block's own scale, and its values as integers.
template <typename Value>
void keep(const uint8_t* block, uint8_t* out, Value&& value) {
  std::memcpy(out, block, 2);
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
void iq4_nl(const uint8_t* b, uint8_t* out) {
  constexpr std::array<int, 16> kTable = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
  keep(b, out, [&](int i) { return kTable[nibble(b + 2, i)]; });
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

constexpr GgmlBlocks kBlocks[] = {
    {2, "Q4_0", 32, 18, true, q4_0},
    {3, "Q4_1", 32, 20, false, q4_1},
    {6, "Q5_0", 32, 22, true, q5_0},
    {7, "Q5_1", 32, 24, false, q5_1},
    {12, "Q4_K", kSuperBlock, 144, false, k_block<false>},
    {13, "Q5_K", kSuperBlock, 176, false, k_block<true>},
    {14, "Q6_K", kSuperBlock, 210, false, q6_k},
    {20, "IQ4_NL", 32, 18, true, iq4_nl},
};

}  // namespace

std::span<const GgmlBlocks> ggml_blocks() { return kBlocks; }

const GgmlBlocks* find_ggml_blocks(std::string_view name) {
  const auto* const found = std::ranges::find(kBlocks, name, &GgmlBlocks::name);
  return found != std::end(kBlocks) ? found : nullptr;
}

}  // namespace moesaic
