// d += a b on a warp, F32 sums: m16n8k16 of F16 or BF16, m16n8k32 of E5M2 or E4M3 times E4M3.
#pragma once

#include <cstdint>

namespace moesaic::cuda {

#define MOESAIC_MMA(SHAPE_AND_TYPES, A0, A1, A2, A3)                                                   \
  asm("mma.sync.aligned." SHAPE_AND_TYPES ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                 \
      : "r"(A0), "r"(A1), "r"(A2), "r"(A3), "r"(b0), "r"(b1))

template <bool kBf16>
__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  if constexpr (kBf16) {
    MOESAIC_MMA("m16n8k16.row.col.f32.bf16.bf16", a0, a1, a2, a3);
  } else {
    MOESAIC_MMA("m16n8k16.row.col.f32.f16.f16", a0, a1, a2, a3);
  }
}
template <bool kBf16>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma<kBf16>(d, a[0], a[1], a[2], a[3], b0, b1);
}
template <bool kBf16>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
  mma<kBf16>(d, a, b.x, b.y);
}

// a in E5M2, b in E4M3. From 8.9 on, where code for 9.0 and 10.x widens both to F16.
__device__ __forceinline__ void mma_fp8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  MOESAIC_MMA("m16n8k32.row.col.f32.e5m2.e4m3", a[0], a[1], a[2], a[3]);
#else
  __trap();
#endif
}
// The same with a in E4M3.
__device__ __forceinline__ void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  MOESAIC_MMA("m16n8k32.row.col.f32.e4m3.e4m3", a[0], a[1], a[2], a[3]);
#else
  __trap();
#endif
}
#undef MOESAIC_MMA

}  // namespace moesaic::cuda
