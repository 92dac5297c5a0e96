// mma.cuh on the host.
#pragma once

#include <array>
#include <cstdint>

#include "backend/cuda/testing/host_simulator/values.h"

namespace moesaic::cuda {

template <bool kBf16>
void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  on_host::ThreadBlock& block = on_host::ThreadBlock::mine();
  const auto all = block.exchange(std::array{a0, a1, a2, a3, b0, b1});
  const float* values = on_host::values_of(kBf16);
  const int g = block.lane() / 4, c = block.lane() % 4;
  for (int q = 0; q < 4; ++q) {
    const auto a = all[4 * g + q];
    for (int n = 0; n < 2; ++n) {
      const auto b = all[4 * (2 * c + n) + q];
      for (int half = 0; half < 2; ++half) {
        for (int e = 0; e < 32; e += 16) {
          const float x = values[b[4 + half] >> e & 0xFFFF];
          for (int h = 0; h < 2; ++h) d[2 * h + n] += values[a[2 * half + h] >> e & 0xFFFF] * x;
        }
      }
    }
  }
}
template <bool kBf16>
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma<kBf16>(d, a[0], a[1], a[2], a[3], b0, b1);
}
template <bool kBf16>
void mma(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
  mma<kBf16>(d, a, b.x, b.y);
}
// of_a: the value of a byte of a.
template <class OfA>
void mma_bytes(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const OfA& of_a) {
  on_host::ThreadBlock& block = on_host::ThreadBlock::mine();
  const auto all = block.exchange(std::array{a[0], a[1], a[2], a[3], b0, b1});
  const int g = block.lane() / 4, c = block.lane() % 4;
  for (int k = 0; k < 32; ++k) {  // register 2 half + h, byte k % 4
    const int q = k % 16 / 4, half = k / 16, bits = 8 * (k % 4);
    for (int n = 0; n < 2; ++n) {
      const float x = on_host::e4m3_values()[all[4 * (2 * c + n) + q][4 + half] >> bits & 0xFF];
      for (int h = 0; h < 2; ++h) d[2 * h + n] += of_a(all[4 * g + q][2 * half + h] >> bits & 0xFF) * x;
    }
  }
}
inline void mma_fp8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const float* const f16 = on_host::values_of(false);
  mma_bytes(d, a, b0, b1, [f16](uint32_t e5m2) { return f16[e5m2 << 8]; });  // F16's upper byte
}
inline void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_bytes(d, a, b0, b1, [](uint32_t e4m3) { return on_host::e4m3_values()[e4m3]; });
}

}  // namespace moesaic::cuda
