// The instruction that everything in kernels/sm120/ stands on: d += (A 2^sa) (B 2^sb), A = weights, E2M1 or
// E4M3, B = activations, E4M3, a scale for each 32 of a row and of a column, sums in F32. A step is a block
// of 32: m16n8k32.
//   sm_120a, sm_121a   mma.sync kind::mxf8f6f4.block_scale, QMMA.SF.16832.F32.E2M1.E4M3.E8 (or E4M3.E4M3)
//   elsewhere          the same registers through mma.sync e4m3 x e4m3, the scales multiplied in afterwards
//
// An E2M1's bits EEM in the middle of E4M3's byte are the same number times 2^-6, subnormals included, so
// that only the sign moves. nvcc 13.0 makes of Hopper's FP8 mma.sync two HMMA.16816.F32 on values widened to
// F16: the products are exact and their sums F32's, not the shorter ones of its FP8 wgmma. So the emulation
// is off by the rounding of sums alone: at most about 32 * 2^-23 of the largest product in a step, and 2^-24
// an addition.
//
// What each lane must hold: block_scaled_mma.h.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/layout/quad_layout.h"

// NVRTC 13.0 tells only the family of sm_121a, 1210.
#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 12)
#define MOESAIC_NATIVE_BLOCK_SCALED_MMA 1
#else
#define MOESAIC_NATIVE_BLOCK_SCALED_MMA 0
#endif

namespace moesaic::cuda::sm120 {

struct FragmentA {
  uint32_t a[4];
};

// The words 2 m and 2 m + 1 of a lane's block of E2M1 weights (layout.h) to tile m.
__device__ inline FragmentA fragment_of(const uint2& words) {
  return {{containers(words.x, 0), containers(words.x, 1), containers(words.y, 0), containers(words.y, 1)}};
}

#if MOESAIC_NATIVE_BLOCK_SCALED_MMA

// The scales of a quad as the instruction takes them: what each lane has read.
struct RowScales {
  uint32_t word;
  __device__ explicit RowScales(uint32_t mine) : word(mine) {}
};
// The scales of kGroups groups of 8 tokens; words[t / 4] of lane 4 g + c: token g of group 4 (t / 4) + c.
template <int kGroups>
struct ColumnScales {
  uint32_t words[(kGroups + 3) / 4];
  __device__ explicit ColumnScales(const uint32_t (&mine)[(kGroups + 3) / 4]) {
    for (int i = 0; i < (kGroups + 3) / 4; ++i) words[i] = mine[i];
  }
};

#define MOESAIC_BLOCK_SCALED_MMA(kind_and_shape, types)                                                \
  asm("mma.sync.aligned.kind::" kind_and_shape ".row.col.f32." types                                   \
      ".f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%12, %13}, " \
      "{%11}, {%12, %14};"                                                                             \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                 \
      : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b0), "r"(b1), "r"(row), "r"(column),   \
        "n"(kByte), "n"(kRow), "n"(kColumnLane))

// Tile kTile of the weight tile, group kColumn of the tokens, the step of block kStep of the quad.
template <Element kA, int kStep, int kTile, int kColumn, int kGroups>
__device__ inline void mma(float (&d)[4], const FragmentA& a, uint32_t b0, uint32_t b1, const RowScales& rows,
                           const ColumnScales<kGroups>& columns) {
  uint32_t row = rows.word, column = columns.words[kColumn / 4];
#ifdef MOESAIC_PLAIN_SCALES
  // Every selector is 0: shuffles and a shift move the scales to the bytes that it reads.
  constexpr int kByte = 0, kRow = 0, kColumnLane = 0;
  row = __shfl_sync(0xFFFFFFFFu, row, 2 * kTile + threadIdx.x % 2, 4) >> (8 * kStep);
  column = __shfl_sync(0xFFFFFFFFu, column, kColumn % 4, 4) >> (8 * kStep);
#else
  constexpr int kByte = kStep, kRow = kTile, kColumnLane = kColumn % 4;
#endif
  if constexpr (kA == Element::kE2M1) {
    MOESAIC_BLOCK_SCALED_MMA("mxf8f6f4.block_scale.scale_vec::1X.m16n8k32", "e2m1.e4m3");
  } else {
    MOESAIC_BLOCK_SCALED_MMA("mxf8f6f4.block_scale.scale_vec::1X.m16n8k32", "e4m3.e4m3");
  }
}
#undef MOESAIC_BLOCK_SCALED_MMA

#else

// 2^(byte - 127); byte 255 makes a NaN of what it scales: the quantiser writes zeros with it.
__device__ inline float scale_of(uint32_t word, int step) {
  const uint32_t byte = word >> (8 * step) & 255u;
  return __uint_as_float(byte == 0 ? 1u << 22 : byte << 23);
}

// The words that concern a lane's sums, fetched once a quad.
struct RowScales {
  uint32_t words[4];  // [tile, half]
  __device__ explicit RowScales(uint32_t mine) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __shfl_sync(0xFFFFFFFFu, mine, i, 4);
  }
};
template <int kGroups>
struct ColumnScales {
  uint32_t words[kGroups][2];  // for columns 2 c and 2 c + 1
  __device__ explicit ColumnScales(const uint32_t (&mine)[(kGroups + 3) / 4]) {
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < kGroups; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        words[t][i] = __shfl_sync(0xFFFFFFFFu, mine[t / 4], 4 * (2 * c + i) + t % 4);
    }
  }
};

// Weights as E4M3: the element times 2^-6 (of E2M1, which comes as 00SEEM00) or the element.
template <Element kElement>
__device__ inline uint32_t widened(uint32_t x) {
  return kElement == Element::kE4M3 ? x : (x & 0x1C1C1C1Cu) | (x << 2 & 0x80808080u);
}

template <Element kA, int kStep, int kTile, int kColumn, int kGroups>
__device__ inline void mma(float (&d)[4], const FragmentA& a, uint32_t b0, uint32_t b1, const RowScales& rows,
                           const ColumnScales<kGroups>& columns) {
  float p[4] = {};
  mma_e4m3(p, {widened<kA>(a.a[0]), widened<kA>(a.a[1]), widened<kA>(a.a[2]), widened<kA>(a.a[3])}, b0, b1);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float column = scale_of(columns.words[kColumn][i % 2], kStep);
    // The activations' scales are at most 2^119 and leave room for a 2^6.
    if constexpr (kA == Element::kE2M1) column *= 64.0f;
    d[i] = fmaf(p[i] * scale_of(rows.words[2 * kTile + i / 2], kStep), column, d[i]);
  }
}

#endif

}  // namespace moesaic::cuda::sm120
