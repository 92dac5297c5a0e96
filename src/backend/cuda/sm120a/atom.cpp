#include "backend/cuda/sm120a/atom.h"

#include "mx/formats.h"

namespace moesaic::cuda::sm120a {
namespace {

// Slot k of a lane's registers: the pair (register / 2 or register, byte).
struct Slot {
  int c, j, i;
};
constexpr Slot slot_of(int k) { return {k % 16 / 4, k / 16, k % 4}; }

uint8_t byte_of(uint32_t word, int i) { return static_cast<uint8_t>(word >> (8 * i)); }

double weight(Element element, const WarpOperands& in, int row, int k) {
  const Slot s = slot_of(k);
  const uint8_t byte = byte_of(in.a[4 * (row % 8) + s.c][2 * s.j + row / 8], s.i);
  return element == Element::kE4M3 ? mx::decode_e4m3(byte) : mx::decode_e2m1(byte >> 2 & 15);
}
double activation(const WarpOperands& in, int column, int k) {
  const Slot s = slot_of(k);
  return mx::decode_e4m3(byte_of(in.b[4 * column + s.c][s.j], s.i));
}

}  // namespace

void atom_on_host(Element element, const WarpOperands& in, int step, int tile, int group, WarpSums& d) {
  for (int row = 0; row < 16; ++row) {
    const uint32_t scale_a = in.scales_a[4 * (row % 8) + 2 * tile + row / 8];
    for (int column = 0; column < 8; ++column) {
      const uint32_t scale_b = in.scales_b[4 * column + group];
      double sum = 0;
      for (int k = 0; k < 32; ++k) sum += weight(element, in, row, k) * activation(in, column, k);
      sum *= double{mx::decode_e8m0(byte_of(scale_a, step))} * mx::decode_e8m0(byte_of(scale_b, step));
      float& out = d[4 * (row % 8) + column / 2][row / 8 * 2 + column % 2];
      out = static_cast<float>(out + sum);
    }
  }
}

}  // namespace moesaic::cuda::sm120a
