// kernels/ptx/wgmma.cuh on the host: a product is computed when the kernel waits for it, not before, and
// reads B then.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/cuda/testing/host_simulator/values.h"

namespace moesaic::cuda::sm90 {

// One thread's part of a product: D[64, columns] (+)= A[64, 16] B[16, columns].
struct PendingProduct {
  float* d = nullptr;
  std::array<uint32_t, 4> a{};
  uint32_t b = 0;
  int columns = 0, row_bytes = 0;
  bool bf16 = false, add = false;
};
using ProductGroup = std::vector<PendingProduct>;
inline constexpr int kMostThreads = 1024;
inline on_host::Later<PendingProduct>& products() {
  static std::array<on_host::Later<PendingProduct>, kMostThreads> all;
  return all[on_host::ThreadBlock::mine().thread()];
}

// By all threads of a warpgroup, each with its part. B is [columns][128 or 64 bytes] in the swizzle of that
// size.
inline void compute(const ProductGroup& mine) {
  static std::array<const ProductGroup*, kMostThreads> all;
  on_host::ThreadBlock& block = on_host::ThreadBlock::mine();
  all[block.thread()] = &mine;
  block.meet_group();
  const int c = block.lane() % 4, quad = block.thread() - c;
  for (size_t i = 0; i < mine.size(); ++i) {
    const PendingProduct& p = mine[i];
    const float* values = on_host::values_of(p.bf16);
    float a[2][16];
    for (int q = 0; q < 4; ++q) {
      const auto& registers = (*all[quad + q])[i].a;
      for (int r = 0; r < 4; ++r) {
        for (int e = 0; e < 2; ++e) a[r % 2][2 * q + r / 2 * 8 + e] = values[registers[r] >> 16 * e & 0xFFFF];
      }
    }
    for (int column = 2 * c; column < p.columns; column += column % 2 == 0 ? 1 : 7) {
      float sum[2] = {};
      for (int k = 0; k < 16; ++k) {
        const uint32_t linear = ((p.b & 0x3FFF) << 4) + column * p.row_bytes + k * 2;
        const uint32_t at = linear ^ (linear >> 7 & (p.row_bytes / 16 - 1)) << 4;
        const float b = values[*reinterpret_cast<const uint16_t*>(block.shared() + at)];
        sum[0] += a[0][k] * b, sum[1] += a[1][k] * b;
      }
      float* d = p.d + column / 8 * 4 + column % 2;
      d[0] = p.add ? d[0] + sum[0] : sum[0], d[2] = p.add ? d[2] + sum[1] : sum[1];
    }
  }
  block.meet_group();
}

inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() { products().commit(); }
template <int kPending>
void warpgroup_wait() {
  products().wait(kPending, compute);
}
template <int N>
void warpgroup_fence_operand(float (&)[N]) {}
template <int N>
void warpgroup_fence_operand(uint32_t (&)[N][4]) {}
inline uint32_t wgmma_operand(uint32_t address) { return address >> 4 & 0x3FFF; }
template <int N>
struct Wgmma {
  template <bool kBf16, int kRowBytes = 128>
  static void run(float (&d)[N / 2], const uint32_t* a, uint32_t b, bool add = true) {
    products().open.push_back({.d = d,
                               .a = {a[0], a[1], a[2], a[3]},
                               .b = b,
                               .columns = N,
                               .row_bytes = kRowBytes,
                               .bf16 = kBf16,
                               .add = add});
  }
};

}  // namespace moesaic::cuda::sm90
