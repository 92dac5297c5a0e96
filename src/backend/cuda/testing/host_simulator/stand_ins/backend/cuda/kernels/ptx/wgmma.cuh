// kernels/ptx/wgmma.cuh on the host: a product is computed when the kernel waits for it, not before, and
// reads B then.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "backend/cuda/testing/host_simulator/values.h"
#include "base/error.h"

namespace moesaic::cuda::sm90 {

enum class ProductType { kF16, kBf16, kFp8 };

// One thread's part of a product: D[64, columns] (+)= A[64, K] B[K, columns], K = 16, in FP8 32.
struct PendingProduct {
  float* d = nullptr;
  std::array<uint32_t, 4> a{};  // or, where it is in shared memory, its operand alone
  uint32_t b = 0;
  int columns = 0, row_bytes = 0;
  ProductType type = ProductType::kF16;
  bool add = false, shares_a = false;
  int depth() const { return type == ProductType::kFp8 ? 32 : 16; }
  bool same_b(const PendingProduct& o) const {
    return std::tie(b, columns, row_bytes, type) == std::tie(o.b, o.columns, o.row_bytes, o.type);
  }
};
using ProductGroup = std::vector<PendingProduct>;
inline constexpr int kMostThreads = 1024, kWarpgroupThreads = 128, kMostColumns = 256;
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
// Element k of a row of an operand in shared memory: [rows][128 or 64 bytes] in the swizzle of that size.
inline float load(const uint8_t* shared, const PendingProduct& p, uint32_t operand, int row, int k) {
  const bool fp8 = p.type == ProductType::kFp8;
  const uint32_t linear = ((operand & 0x3FFF) << 4) + row * p.row_bytes + (fp8 ? k : 2 * k);
  const uint8_t* const at = shared + (linear ^ (linear >> 7 & (p.row_bytes / 16 - 1)) << 4);
  if (fp8) return on_host::e4m3_values()[*at];
  return on_host::values_of(p.type == ProductType::kBf16)[*reinterpret_cast<const uint16_t*>(at)];
}
// B of the products that a warpgroup waits for, decoded once for all of its threads.
struct GroupB {
  ProductGroup products;      // the first thread's
  std::vector<float> values;  // product by product, each [k][lane of a quad][columns / 4]
  int readers = 0;

  void load(const uint8_t* shared, const ProductGroup& first) {
    products = first;
    values.clear();
    for (const PendingProduct& p : products) {
      for (int k = 0; k < p.depth(); ++k) {
        for (int lane = 0; lane < 4; ++lane) {
          for (int i = 0; i < p.columns / 4; ++i)
            values.push_back(sm90::load(shared, p, p.b, i / 2 * 8 + 2 * lane + i % 2, k));
        }
      }
    }
  }
};
// For each thread of a warpgroup once, after they have met.
inline const GroupB& load_group_b(const ProductGroup& mine) {
  static std::array<GroupB, kMostThreads / kWarpgroupThreads> all;
  const on_host::ThreadBlock& block = on_host::ThreadBlock::mine();
  GroupB& b = all[block.thread() / kWarpgroupThreads];
  if (b.readers == 0) b.load(block.shared(), mine);
  b.readers = (b.readers + 1) % kWarpgroupThreads;
  return b;
}

// By all threads of a warpgroup, each with its part.
inline void compute(const ProductGroup& mine) {
  static std::array<const ProductGroup*, kMostThreads> all;
  on_host::ThreadBlock& block = on_host::ThreadBlock::mine();
  all[block.thread()] = &mine;
  block.meet_group();
  const GroupB& b = load_group_b(mine);
  const float* values = b.values.data();
  const int c = block.lane() % 4, quad = block.thread() - c;
  for (size_t i = 0; i < mine.size(); ++i) {
    const PendingProduct& p = mine[i];
    MOESAIC_CHECK(p.same_b(b.products[i]));  // the device reads one B for the whole warpgroup
    float a[2][32];
    for (int k = 0; p.shares_a && k < 16; ++k) {
      for (int h = 0; h < 2; ++h)
        a[h][k] = load(block.shared(), p, p.a[0],
                       block.thread() % kWarpgroupThreads / 32 * 16 + 8 * h + block.lane() / 4, k);
    }
    if (!p.shares_a)
      load_a({(*all[quad])[i].a, (*all[quad + 1])[i].a, (*all[quad + 2])[i].a, (*all[quad + 3])[i].a}, p.type,
             a);
    float sums[2][kMostColumns / 4] = {};
    const int own = p.columns / 4;
    for (int k = 0; k < p.depth(); ++k) {
      const float* const row = values + (4 * k + c) * own;
      for (int j = 0; j < own; ++j) sums[0][j] += a[0][k] * row[j], sums[1][j] += a[1][k] * row[j];
    }
    values += p.depth() * p.columns;
    for (int j = 0; j < own; ++j) {
      float* d = p.d + j / 2 * 4 + j % 2;
      d[0] = p.add ? d[0] + sums[0][j] : sums[0][j], d[2] = p.add ? d[2] + sums[1][j] : sums[1][j];
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
template <int kRowBytes = 128>
void wgmma_from_shared(float (&d)[64], uint32_t a, uint32_t b, bool add) {
  products().open.push_back({.d = d,
                             .a = {a},
                             .b = b,
                             .columns = 128,
                             .row_bytes = kRowBytes,
                             .type = ProductType::kBf16,
                             .add = add,
                             .shares_a = true});
}

}  // namespace moesaic::cuda::sm90
