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
inline void mma_fp8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  on_host::ThreadBlock& block = on_host::ThreadBlock::mine();
  const auto all = block.exchange(std::array{a[0], a[1], a[2], a[3], b0, b1});
  const float* const f16 = on_host::values_of(false);
  const int g = block.lane() / 4, c = block.lane() % 4;
  for (int k = 0; k < 32; ++k) {  // register 2 half + h, byte k % 4
    const int q = k % 16 / 4, half = k / 16, bits = 8 * (k % 4);
    for (int n = 0; n < 2; ++n) {
      const float x = on_host::e4m3_values()[all[4 * (2 * c + n) + q][4 + half] >> bits & 0xFF];
      for (int h = 0; h < 2; ++h)  // E5M2: F16's upper byte
        d[2 * h + n] += f16[(all[4 * g + q][2 * half + h] >> bits & 0xFF) << 8] * x;
    }
  }
}

}  // namespace moesaic::cuda
