// kernels/ptx/wgmma.cuh on the host: a product is computed when the kernel waits for it, not before, and
// reads B then.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/cuda/testing/host_simulator/values.h"

namespace moesaic::cuda::sm90 {

enum class ProductType { kF16, kBf16, kFp8 };

// One thread's part of a product: D[64, columns] (+)= A[64, K] B[K, columns], K = 16, in FP8 32.
struct PendingProduct {
  float* d = nullptr;
  std::array<uint32_t, 4> a{};
  uint32_t b = 0;
  int columns = 0, row_bytes = 0;
  ProductType type = ProductType::kF16;
  bool add = false;
};
using ProductGroup = std::vector<PendingProduct>;
inline constexpr int kMostThreads = 1024;
inline on_host::Later<PendingProduct>& products() {
  static std::array<on_host::Later<PendingProduct>, kMostThreads> all;
  return all[on_host::ThreadBlock::mine().thread()];
}

// Rows lane / 4 and + 8 of A, of which each lane of the quad has a part.
inline void load_a(const std::array<std::array<uint32_t, 4>, 4>& quad, ProductType type, float (&a)[2][32]) {
  const int each = type == ProductType::kFp8 ? 4 : 2;  // values of a register
  for (int q = 0; q < 4; ++q) {
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < each; ++e) {
        const uint32_t bits = quad[q][r] >> 32 / each * e;
        a[r % 2][each * q + r / 2 * each * 4 + e] =
            type == ProductType::kFp8
                ? on_host::values_of(false)[(bits & 0xFF) << 8]  // E5M2: F16's upper byte
                : on_host::values_of(type == ProductType::kBf16)[bits & 0xFFFF];
      }
    }
  }
}
// Element (k, column) of B: [columns][128 or 64 bytes] in the swizzle of that size.
inline float load_b(const uint8_t* shared, const PendingProduct& p, int column, int k) {
  const bool fp8 = p.type == ProductType::kFp8;
  const uint32_t linear = ((p.b & 0x3FFF) << 4) + column * p.row_bytes + (fp8 ? k : 2 * k);
  const uint8_t* const at = shared + (linear ^ (linear >> 7 & (p.row_bytes / 16 - 1)) << 4);
  if (fp8) return mx::decode_e4m3(*at);
  return on_host::values_of(p.type == ProductType::kBf16)[*reinterpret_cast<const uint16_t*>(at)];
}

// By all threads of a warpgroup, each with its part.
inline void compute(const ProductGroup& mine) {
  static std::array<const ProductGroup*, kMostThreads> all;
  on_host::ThreadBlock& block = on_host::ThreadBlock::mine();
  all[block.thread()] = &mine;
  block.meet_group();
  const int c = block.lane() % 4, quad = block.thread() - c;
  for (size_t i = 0; i < mine.size(); ++i) {
    const PendingProduct& p = mine[i];
    float a[2][32];
    load_a({(*all[quad])[i].a, (*all[quad + 1])[i].a, (*all[quad + 2])[i].a, (*all[quad + 3])[i].a}, p.type,
           a);
    for (int column = 2 * c; column < p.columns; column += column % 2 == 0 ? 1 : 7) {
      float sum[2] = {};
      for (int k = 0; k < (p.type == ProductType::kFp8 ? 32 : 16); ++k) {
        const float b = load_b(block.shared(), p, column, k);
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
    start(d, a, b, kBf16 ? ProductType::kBf16 : ProductType::kF16, kRowBytes, add);
  }
  static void run_fp8(float (&d)[N / 2], const uint32_t* a, uint32_t b) {
    start(d, a, b, ProductType::kFp8, 64, true);
  }
  static void start(float* d, const uint32_t* a, uint32_t b, ProductType type, int row_bytes, bool add) {
    products().open.push_back({.d = d,
                               .a = {a[0], a[1], a[2], a[3]},
                               .b = b,
                               .columns = N,
                               .row_bytes = row_bytes,
                               .type = type,
                               .add = add});
  }
};

}  // namespace moesaic::cuda::sm90
