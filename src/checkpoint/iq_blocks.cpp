#include "checkpoint/iq_blocks.h"

#include <bit>

#include "checkpoint/ggml_bytes.h"
#include "checkpoint/ggml_grids.h"

namespace moesaic {
namespace {

constexpr int kGroups = 32;  // groups of 8 elements in a super-block

int nibble(uint8_t byte, int i) { return byte >> (4 * i) & 15; }

// Eight sign bits of which only seven are stored: their number is even.
uint32_t even_signs(uint32_t seven) { return seven | (std::popcount(seven) & 1U) << 7; }

// Eight elements of a row of the table.
void put_iq2(float scale, uint16_t row, uint32_t signs, float* out) {
  constexpr float kLevels[] = {8, 25, 43, 0};
  for (int i = 0; i < 8; ++i) {
    const float value = scale * kLevels[row >> (2 * i) & 3];
    out[i] = (signs >> i & 1) != 0 ? -value : value;
  }
}
// Eight elements of two rows of four, 4, 12 ... 52, 62 (IQ3_XXS) or 1, 3 ... 15 (IQ3_S).
template <bool kWide>
void put_iq3(float scale, uint16_t first, uint16_t second, uint32_t signs, float* out) {
  for (int i = 0; i < 8; ++i) {
    const int level = (i < 4 ? first : second) >> (4 * (i % 4)) & 7;
    const float value = scale * static_cast<float>(!kWide ? 2 * level + 1 : level == 7 ? 62 : 8 * level + 4);
    out[i] = (signs >> i & 1) != 0 ? -value : value;
  }
}
// Eight elements of -1, 0 and 1, all moved by an eighth.
void put_iq1(float scale, uint16_t row, bool down, float* out) {
  for (int i = 0; i < 8; ++i)
    out[i] = scale * (static_cast<float>(row >> (2 * i) & 3) - 1 + (down ? -0.125F : 0.125F));
}

}  // namespace

// d, then for each 32 elements four bytes of indices and a word: four times seven signs, four bits of scale.
void decode_iq2_xxs(const uint8_t* b, float* out) {
  for (int block = 0; block < kGroups / 4; ++block) {
    const uint8_t* const rows = b + 2 + 8 * block;
    const uint32_t word = word_at(rows + 4);
    const float scale = f16_at(b) * (0.5F + static_cast<float>(word >> 28)) * 0.25F;
    for (int g = 0; g < 4; ++g, out += 8)
      put_iq2(scale, kIq2XxsGrid[rows[g]], even_signs(word >> (7 * g) & 127), out);
  }
}

// d, for each 8 elements 9 bits of index and seven signs, then for each 16 four bits of scale.
void decode_iq2_xs(const uint8_t* b, float* out) {
  for (int g = 0; g < kGroups; ++g, out += 8) {
    const uint16_t code = half_at(b + 2 + 2 * g);
    const int scale = nibble(b[66 + g / 4], g / 2 % 2);
    put_iq2(f16_at(b) * (0.5F + static_cast<float>(scale)) * 0.25F, kIq2XsGrid[code & 511],
            even_signs(code >> 9), out);
  }
}

// d, for each 8 elements a byte of index, for each 8 a byte of signs, for each 32 a byte with the upper two
// bits of four indices, then for each 16 four bits of scale.
void decode_iq2_s(const uint8_t* b, float* out) {
  for (int g = 0; g < kGroups; ++g, out += 8) {
    const int row = b[2 + g] | (b[66 + g / 4] >> (2 * (g % 4)) & 3) << 8;
    const int scale = nibble(b[74 + g / 4], g / 2 % 2);
    put_iq2(f16_at(b) * (0.5F + static_cast<float>(scale)) * 0.25F, kIq2SGrid[row], b[34 + g], out);
  }
}

// d, for each 4 elements a byte of index, then for each 32 a word as in IQ2_XXS.
void decode_iq3_xxs(const uint8_t* b, float* out) {
  for (int g = 0; g < kGroups; ++g, out += 8) {
    const uint32_t word = word_at(b + 66 + 4 * (g / 4));
    const float scale = f16_at(b) * (0.5F + static_cast<float>(word >> 28)) * 0.5F;
    put_iq3<true>(scale, kIq3XxsGrid[b[2 + 2 * g]], kIq3XxsGrid[b[3 + 2 * g]],
                  even_signs(word >> (7 * (g % 4)) & 127), out);
  }
}

// d, for each 4 elements a byte of index, for each 32 a byte with the ninth bits, for each 8 a byte of signs,
// then for each 32 four bits of scale.
void decode_iq3_s(const uint8_t* b, float* out) {
  for (int g = 0; g < kGroups; ++g, out += 8) {
    const auto row = [&](int i) { return b[2 + i] | (b[66 + i / 8] >> (i % 8) & 1) << 8; };
    const int scale = nibble(b[106 + g / 8], g / 4 % 2);
    put_iq3<false>(f16_at(b) * static_cast<float>(2 * scale + 1), kIq3SGrid[row(2 * g)],
                   kIq3SGrid[row(2 * g + 1)], b[74 + g], out);
  }
}

// d, for each 8 elements a byte of index, then for each 32 four times the three upper bits of one, three bits
// of scale, and whether the elements are moved down or up.
void decode_iq1_s(const uint8_t* b, float* out) {
  for (int g = 0; g < kGroups; ++g, out += 8) {
    const uint16_t high = half_at(b + 34 + 2 * (g / 4));
    const int row = b[2 + g] | (high >> (3 * (g % 4)) & 7) << 8;
    const float scale = f16_at(b) * static_cast<float>(2 * (high >> 12 & 7) + 1);
    put_iq1(scale, kIq1Grid[row], high >> 15 != 0, out);
  }
}

// For each 8 elements a byte of index, for each 8 four bits (three upper ones, and whether the elements are
// moved down), then four times four scales of 16 elements, three bits each, below four bits of d.
void decode_iq1_m(const uint8_t* b, float* out) {
  int code = 0;
  for (int i = 0; i < 4; ++i) code |= half_at(b + 48 + 2 * i) >> 12 << (4 * i);
  const float d = mx::decode_f16(static_cast<uint16_t>(code));
  for (int g = 0; g < kGroups; ++g, out += 8) {
    const int high = nibble(b[32 + g / 2], g % 2), sixteen = g / 2;
    const int scale = half_at(b + 48 + 2 * (sixteen / 4)) >> (3 * (sixteen % 4)) & 7;
    put_iq1(d * static_cast<float>(2 * scale + 1), kIq1Grid[b[g] | (high & 7) << 8], (high & 8) != 0, out);
  }
}

}  // namespace moesaic
