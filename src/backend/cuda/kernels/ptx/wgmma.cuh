// The warpgroup's matrix product on Hopper: D[64, N] += A[64, 16] B[16, N], A from registers (a warp has 16
// rows, in the order of mma.sync's A operand), B from shared memory as [N][64 or 32 columns of K] with the
// 128- or 64-byte swizzle, D as mma.sync has it: d[4 i + 2 h + e] is row 16 warp + 8 h + lane / 4, column 8 i
// + 2 (lane % 4) + e.
//
// FP8: A[64, 32] is E5M2 and B E4M3. A lane's first two registers of A hold columns 4 (lane % 4) to + 3 of
// the rows lane / 4 and lane / 4 + 8, the other two those 16 columns further.
#pragma once

#include <cstdint>

namespace moesaic::cuda::sm90 {

// Before the first product, and whenever registers that a product reads were written.
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit_batch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending groups are in flight.
template <int kPending>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of D before this point: to be called behind warpgroup_wait().
template <int N>
__device__ __forceinline__ void warpgroup_fence_operand(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The same for A: other values may take its registers behind this point.
template <int N>
__device__ __forceinline__ void warpgroup_fence_operand(uint32_t (&a)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]));
}

// Lower half of B's matrix descriptor: the address / 16. 16 columns further on: + 2.
__device__ __forceinline__ uint32_t wgmma_operand(uint32_t address) {
  return (address >> 4 & 0x3FFF) | 1u << 16;
}
// Its upper half: the stride of 8 rows in bytes / 16, and the swizzle.
template <int kRowBytes>
inline constexpr uint32_t kWgmmaUpper = kRowBytes / 2 | (kRowBytes == 128 ? 1u : 2u) << 30;

template <int N>
struct Wgmma;  // ::run<kBf16, bytes of a row of B>(d, a, b, add): add false overwrites D
               // ::run_fp8(d, a, b): a row of B has 64 bytes

#define MOESAIC_WGMMA_ASM(TYPE, N, D, A, B, U, S)                            \
  "{.reg .b64 b; .reg .pred p; mov.b64 b, {" B ", " U "}; setp.ne.s32 p, " S \
  ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "}, {" A "}, b, p, 1, 1, 0;}"
#define MOESAIC_WGMMA_FP8_ASM(N, D, A, B, U)                                                              \
  "{.reg .b64 b; mov.b64 b, {" B ", " U "}; wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e5m2.e4m3 {" D \
  "}, {" A "}, b, 1, 1, 1;}"
#define MOESAIC_WGMMA(N, D, A, B, U, S, ...)                                                            \
  template <>                                                                                           \
  struct Wgmma<N> {                                                                                     \
    template <bool kBf16, int kRowBytes = 128>                                                          \
    static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t* a, uint32_t b,        \
                                               bool add = true) {                                       \
      if constexpr (kBf16) {                                                                            \
        asm volatile(MOESAIC_WGMMA_ASM("bf16", N, D, A, B, U, S)                                        \
                     : __VA_ARGS__                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kWgmmaUpper<kRowBytes>), \
                       "r"(static_cast<int>(add)));                                                     \
      } else {                                                                                          \
        asm volatile(MOESAIC_WGMMA_ASM("f16", N, D, A, B, U, S)                                         \
                     : __VA_ARGS__                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kWgmmaUpper<kRowBytes>), \
                       "r"(static_cast<int>(add)));                                                     \
      }                                                                                                 \
    }                                                                                                   \
    static __device__ __forceinline__ void run_fp8(float (&d)[N / 2], const uint32_t* a, uint32_t b) {  \
      asm volatile(MOESAIC_WGMMA_FP8_ASM(N, D, A, B, U)                                                 \
                   : __VA_ARGS__                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kWgmmaUpper<64>));         \
    }                                                                                                   \
  }
#define MOESAIC_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MOESAIC_D8(i) MOESAIC_D4(i), MOESAIC_D4(i + 4)
#define MOESAIC_D16(i) MOESAIC_D8(i), MOESAIC_D8(i + 8)
#define MOESAIC_D32(i) MOESAIC_D16(i), MOESAIC_D16(i + 16)

// The first so many registers of D.
#define MOESAIC_R4 "%0, %1, %2, %3"
#define MOESAIC_R8 MOESAIC_R4 ", %4, %5, %6, %7"
#define MOESAIC_R16 MOESAIC_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MOESAIC_R24 MOESAIC_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MOESAIC_R32 MOESAIC_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MOESAIC_R40 MOESAIC_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MOESAIC_R48 MOESAIC_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MOESAIC_R56 MOESAIC_R48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MOESAIC_R64 MOESAIC_R56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MOESAIC_R72 MOESAIC_R64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define MOESAIC_R80 MOESAIC_R72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define MOESAIC_R88 MOESAIC_R80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define MOESAIC_R96 MOESAIC_R88 ", %88, %89, %90, %91, %92, %93, %94, %95"

MOESAIC_WGMMA(8, MOESAIC_R4, "%4, %5, %6, %7", "%8", "%9", "%10", MOESAIC_D4(0));
MOESAIC_WGMMA(16, MOESAIC_R8, "%8, %9, %10, %11", "%12", "%13", "%14", MOESAIC_D8(0));
MOESAIC_WGMMA(32, MOESAIC_R16, "%16, %17, %18, %19", "%20", "%21", "%22", MOESAIC_D16(0));
MOESAIC_WGMMA(48, MOESAIC_R24, "%24, %25, %26, %27", "%28", "%29", "%30", MOESAIC_D16(0), MOESAIC_D8(16));
MOESAIC_WGMMA(64, MOESAIC_R32, "%32, %33, %34, %35", "%36", "%37", "%38", MOESAIC_D32(0));
MOESAIC_WGMMA(80, MOESAIC_R40, "%40, %41, %42, %43", "%44", "%45", "%46", MOESAIC_D32(0), MOESAIC_D8(32));
MOESAIC_WGMMA(96, MOESAIC_R48, "%48, %49, %50, %51", "%52", "%53", "%54", MOESAIC_D32(0), MOESAIC_D16(32));
MOESAIC_WGMMA(112, MOESAIC_R56, "%56, %57, %58, %59", "%60", "%61", "%62", MOESAIC_D32(0), MOESAIC_D16(32),
              MOESAIC_D8(48));
MOESAIC_WGMMA(128, MOESAIC_R64, "%64, %65, %66, %67", "%68", "%69", "%70", MOESAIC_D32(0), MOESAIC_D32(32));
MOESAIC_WGMMA(144, MOESAIC_R72, "%72, %73, %74, %75", "%76", "%77", "%78", MOESAIC_D32(0), MOESAIC_D32(32),
              MOESAIC_D8(64));
MOESAIC_WGMMA(160, MOESAIC_R80, "%80, %81, %82, %83", "%84", "%85", "%86", MOESAIC_D32(0), MOESAIC_D32(32),
              MOESAIC_D16(64));
MOESAIC_WGMMA(176, MOESAIC_R88, "%88, %89, %90, %91", "%92", "%93", "%94", MOESAIC_D32(0), MOESAIC_D32(32),
              MOESAIC_D16(64), MOESAIC_D8(80));
MOESAIC_WGMMA(192, MOESAIC_R96, "%96, %97, %98, %99", "%100", "%101", "%102", MOESAIC_D32(0), MOESAIC_D32(32),
              MOESAIC_D32(64));

// The same with A from shared memory: [64][64 or 32 columns of K], as B. BF16, N = 128.
template <int kRowBytes = 128>
__device__ __forceinline__ void wgmma_from_shared(float (&d)[64], uint32_t a, uint32_t b, bool add) {
  asm volatile(
      "{.reg .b64 a, b; .reg .pred p; mov.b64 a, {%64, %66}; mov.b64 b, {%65, %66}; setp.ne.s32 p, %67, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MOESAIC_R64 "}, a, b, p, 1, 1, 0, 0;}"
      : MOESAIC_D32(0), MOESAIC_D32(32)
      : "r"(a), "r"(b), "n"(kWgmmaUpper<kRowBytes>), "r"(static_cast<int>(add)));
}

#undef MOESAIC_WGMMA
#undef MOESAIC_WGMMA_ASM
#undef MOESAIC_WGMMA_FP8_ASM
#undef MOESAIC_D4
#undef MOESAIC_D8
#undef MOESAIC_D16
#undef MOESAIC_D32

}  // namespace moesaic::cuda::sm90
