// D[64, N] += A[64, 16] B[16, N] on a warpgroup, BF16: A from registers, where a warp has 16 rows in the
// order of mma.sync's A operand; B from shared memory as N rows along K, with the 128- or 64-byte swizzle. D
// is as mma.sync has it: d[4 i + 2 h + e] is row 16 warp + 8 h + lane / 4, column 8 i + 2 (lane % 4) + e.
#pragma once

#include <cstdint>

#include "backend/cuda/sm90a/ptx.cuh"

namespace moesaic::cuda::sm90a {

// What names B: the address / 16, the bytes from 8 rows to the next 8 / 16, the swizzle. 16 columns on is
// + 2.
template <int kRowBytes>
__device__ __forceinline__ uint64_t matrix_rows(const void* at) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  constexpr uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  return static_cast<uint64_t>(smem_addr(at) >> 4 & 0x3FFF) | 1ull << 16 |
         static_cast<uint64_t>(kRowBytes / 2) << 32 | kSwizzle << 62;
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all products have ended. D may be used after settle(D), before which no use of it moves.
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define MOESAIC_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MOESAIC_D16(i) MOESAIC_D4(i), MOESAIC_D4(i + 4), MOESAIC_D4(i + 8), MOESAIC_D4(i + 12)

__device__ __forceinline__ void product(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
      : MOESAIC_D16(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : MOESAIC_D16(0), MOESAIC_D16(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
      : MOESAIC_D16(0), MOESAIC_D16(16), MOESAIC_D16(32), MOESAIC_D16(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef MOESAIC_D4
#undef MOESAIC_D16

}  // namespace moesaic::cuda::sm90a
