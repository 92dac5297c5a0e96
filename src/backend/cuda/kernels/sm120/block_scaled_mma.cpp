#include "backend/cuda/kernels/sm120/block_scaled_mma.h"

#include "mx/formats.h"

namespace moesaic::cuda::sm120 {
namespace {

uint8_t byte_of(uint32_t word, int i) { return static_cast<uint8_t>(word >> (8 * i)); }
double e2m1(uint32_t bits) { return mx::decode_e2m1(bits & 15); }

// Where k of a step stands: a lane's register (of B; of A twice that, and one more for row g + 8) and bits.
struct BytePlace {
  int c, j, shift;
};
constexpr BytePlace place_of(int k) { return {k % 16 / 4, k / 16, 8 * (k % 4)}; }

double weight(Element a, const WarpOperands& in, int row, int k) {
  const BytePlace s = place_of(k);
  const uint32_t bits = in.a[4 * (row % 8) + s.c][2 * s.j + row / 8] >> s.shift;
  if (a == Element::kE4M3) return mx::decode_e4m3(byte_of(bits, 0));
  return e2m1(bits >> 2);
}
double activation(const WarpOperands& in, int column, int k) {
  const BytePlace s = place_of(k);
  return mx::decode_e4m3(byte_of(in.b[4 * column + s.c][s.j] >> s.shift, 0));
}

}  // namespace

void mma_on_host(Element a, const WarpOperands& in, int step, int tile, int group, WarpSums& d) {
  for (int row = 0; row < 16; ++row) {
    const uint32_t scale_a = in.scales_a[4 * (row % 8) + 2 * tile + row / 8];
    for (int column = 0; column < 8; ++column) {
      const uint32_t scale_b = in.scales_b[4 * column + group];
      double sum = 0;
      for (int k = 0; k < 32; ++k) {
        sum += weight(a, in, row, k) * activation(in, column, k) * mx::decode_e8m0(byte_of(scale_a, step)) *
               mx::decode_e8m0(byte_of(scale_b, step));
      }
      float& out = d[4 * (row % 8) + column / 2][row / 8 * 2 + column % 2];
      out = static_cast<float>(out + sum);
    }
  }
}

}  // namespace moesaic::cuda::sm120
