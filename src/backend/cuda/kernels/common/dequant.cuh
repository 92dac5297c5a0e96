// Weights in matrix.h's order become A fragments of mma.sync m16n8k16, or of FP8's m16n8k32.
//
// Maths    a Source has what a lane loads of one block of a weight tile. fragment(m, j): the registers a0
//          to a3 of MMA tile m and step j, as BF16 (kBf16) or F16. scale(m, h): the block's scale of row 16
//          m + 8 h + lane / 4, applied to the F32 sums. kFactor: what the result is multiplied by.
// Shapes   block 32 x 32; kBlockBytes and kScaleBytes: 2048 and 0 (BF16, F16), 1024 and 64 (Q8_0), 1024 and
//          32 (MXFP8), 512 and 32 (MXFP4). matrix.h draws them.
// Roles    any warp, each lane for itself, with 16-byte loads of weights past L1; no shared memory, no
//          barriers.
// Ordering only weights are read, which no kernel of a step writes: no wait is needed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/kernels/ptx/e4m3.cuh"
#include "backend/cuda/kernels/ptx/load.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/layout/matrix.h"

namespace moesaic::cuda {

struct Fragment {
  uint32_t a[4];
};

// A lane's part of one block, as loaded, and how it becomes fragments (m, j) and the scales of its rows (m,
// h). Sources without scales accumulate straight on.
struct PlainSource {
  static constexpr bool kScaled = false, kFp8 = false;
  static constexpr int kBlockBytes = 2048, kScaleBytes = 0;
  static constexpr float kFactor = 1.0f;
  uint4 q[4];
  __device__ void load(const uint8_t* data, const uint8_t*, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) q[i] = load_weights(data + i * 512 + lane * 16);
  }
  __device__ Fragment fragment(int m, int j) const {
    const uint4 v = q[2 * m + j];
    return {{v.x, v.y, v.z, v.w}};
  }
  __device__ float scale(int, int) const { return 1.0f; }
};
struct Bf16Source : PlainSource {
  static constexpr bool kBf16 = true;
};
struct F16Source : PlainSource {
  static constexpr bool kBf16 = false;
};

// 2^(s - 127) of byte i; s = 0 is as good as zero, s = 255 was refused at load.
__device__ inline float e8m0(uint32_t word, int i) { return __uint_as_float((word >> (8 * i) & 255u) << 23); }

// The words of Mxfp4Source: E2M1 as F16 is value * 2^-14 with the sign in bit 15 and the other three bits
// in 11..9, of two values in the halves of a register. Register a0 stands in place; a1 three bits lower; the
// magnitudes of a2 and a3 six and nine bits lower, with their signs in bits 14 and 13: 11 instructions for 8
// weights.
struct Mxfp4Source {
  static constexpr bool kScaled = true, kBf16 = false, kFp8 = false;
  static constexpr int kBlockBytes = 512, kScaleBytes = 32;
  static constexpr float kFactor = 16384.0f;  // takes out 2^-14
  uint4 q;
  uint32_t s;
  __device__ void load(const uint8_t* data, const uint8_t* scales, int lane) {
    q = load_weights(data + lane * 16);
    s = __ldg(reinterpret_cast<const uint32_t*>(scales + lane / 4 * 4));
  }
  __device__ uint32_t word(int m, int j) const {
    return m == 0 ? (j == 0 ? q.x : q.y) : (j == 0 ? q.z : q.w);
  }
  __device__ Fragment fragment(int m, int j) const {
    const uint32_t w = word(m, j);
    constexpr uint32_t kAll = 0x8E008E00u, kMagnitude = 0x0E000E00u, kSign = 0x80008000u;
    return {{w & kAll, w << 3 & kAll, (w << 6 & kMagnitude) | (w << 1 & kSign),
             (w << 9 & kMagnitude) | (w << 2 & kSign)}};
  }
  __device__ float scale(int m, int h) const { return e8m0(s, 2 * m + h); }
};
// Two blocks as E5M2, which is the upper byte of the F16 above, for activations in E4M3 (gemm_fp8.h).
// fragment(m, i): of block i. Byte 1 + 2 e of a register is half e of a0 or a1, byte 2 e that of a2 or a3: 11
// instructions for 8 weights, as in F16. E4M3, whose exponent begins a bit lower, would take 15. The scales
// multiply F32 sums: 4 FMAs for an MMA of 32 cycles (Ada), and exact whatever they are.
struct Mxfp4Fp8Source {
  static constexpr bool kScaled = true, kFp8 = true;
  static constexpr int kBlockBytes = 2 * Mxfp4Source::kBlockBytes, kScaleBytes = 2 * Mxfp4Source::kScaleBytes;
  static constexpr float kFactor = Mxfp4Source::kFactor;
  Mxfp4Source blocks[2];
  __device__ void load(const uint8_t* data, const uint8_t* scales, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      blocks[i].load(data + i * Mxfp4Source::kBlockBytes, scales + i * Mxfp4Source::kScaleBytes, lane);
  }
  __device__ Fragment fragment(int m, int i) const {
    constexpr uint32_t kUpper = 0x8E008E00u, kMagnitude = 0x000E000Eu, kSign = 0x00800080u;
    const uint32_t w = blocks[i].word(m, 0), v = blocks[i].word(m, 1);
    return {{(w & kUpper) | (w >> 2 & kMagnitude) | (w >> 7 & kSign),
             (w << 3 & kUpper) | (w << 1 & kMagnitude) | (w >> 6 & kSign),
             (v & kUpper) | (v >> 2 & kMagnitude) | (v >> 7 & kSign),
             (v << 3 & kUpper) | (v << 1 & kMagnitude) | (v >> 6 & kSign)}};
  }
  __device__ float scale(int m, int h, int i) const { return blocks[i].scale(m, h); }
};
// The word of eight E2M1 codes: a[i][e], register i, half e.
__host__ __device__ inline uint32_t mxfp4_word(const uint8_t (&a)[4][2]) {
  constexpr int kMagnitude[4] = {9, 6, 3, 0}, kSign[4] = {15, 12, 14, 13};
  uint32_t w = 0;
  for (int i = 0; i < 4; ++i) {
    for (int e = 0; e < 2; ++e) {
      w |= static_cast<uint32_t>(a[i][e] & 7) << (kMagnitude[i] + 16 * e);
      w |= static_cast<uint32_t>(a[i][e] >> 3) << (kSign[i] + 16 * e);
    }
  }
  return w;
}

struct ByteSource {
  static constexpr bool kScaled = true, kBf16 = false, kFp8 = false;
  static constexpr int kBlockBytes = 1024;
  static constexpr float kFactor = 1.0f;
  uint4 q[2];
  __device__ void load_bytes(const uint8_t* data, int lane) {
    q[0] = load_weights(data + lane * 16);
    q[1] = load_weights(data + 512 + lane * 16);
  }
  __device__ uint2 words(int m, int j) const {
    return j == 0 ? make_uint2(q[m].x, q[m].y) : make_uint2(q[m].z, q[m].w);
  }
};
struct Mxfp8Source : ByteSource {
  static constexpr int kScaleBytes = 32;
  uint32_t s;
  __device__ void load(const uint8_t* data, const uint8_t* scales, int lane) {
    load_bytes(data, lane);
    s = __ldg(reinterpret_cast<const uint32_t*>(scales + lane / 4 * 4));
  }
  // For a block of which only the half m = 1 is there, as the first: its row's.
  using HalfScales = uint16_t;
  __device__ void set_upper_scales(HalfScales upper) { s = upper; }
  __device__ Fragment fragment(int m, int j) const {
    const uint2 w = words(m, j), low = e4m3_to_f16(w.x), high = e4m3_to_f16(w.y);
    return {{low.x, low.y, high.x, high.y}};
  }
  __device__ float scale(int m, int h) const { return e8m0(s, 2 * m + h); }
};
struct Q8Source : ByteSource {
  static constexpr int kScaleBytes = 64;
  uint2 s;
  __device__ void load(const uint8_t* data, const uint8_t* scales, int lane) {
    load_bytes(data, lane);
    s = __ldg(reinterpret_cast<const uint2*>(scales + lane / 4 * 8));
  }
  using HalfScales = uint32_t;  // see Mxfp8Source
  __device__ void set_upper_scales(HalfScales upper) { s.x = upper; }
  // A byte under 0x64 is the F16 1024 + byte.
  __device__ static uint32_t widen(uint32_t word, uint32_t selector) {
    const uint32_t h = __byte_perm(word, 0x64646464u, selector);
    const __half2 v = __hsub2(*reinterpret_cast<const __half2*>(&h), __float2half2_rn(1152.0f));
    return *reinterpret_cast<const uint32_t*>(&v);
  }
  __device__ Fragment fragment(int m, int j) const {
    const uint2 w = words(m, j);
    return {{widen(w.x, 0x4140), widen(w.x, 0x4342), widen(w.y, 0x4140), widen(w.y, 0x4342)}};
  }
  __device__ float scale(int m, int h) const {
    const uint32_t word = m == 0 ? s.x : s.y;
    return __half2float(__ushort_as_half(static_cast<uint16_t>(h == 0 ? word & 0xFFFF : word >> 16)));
  }
};

// run.operator()<Source>() for the weight tiles of a kind, otherwise() for other kinds.
template <class Run, class Otherwise>
auto with_source(Kind kind, const Run& run, const Otherwise& otherwise) {
  switch (kind) {
    case Kind::kBF16:
      return run.template operator()<Bf16Source>();
    case Kind::kF16:
      return run.template operator()<F16Source>();
    case Kind::kQ8_0:
      return run.template operator()<Q8Source>();
    case Kind::kMxfp8:
      return run.template operator()<Mxfp8Source>();
    case Kind::kMxfp4:
      return run.template operator()<Mxfp4Source>();
    default:
      return otherwise();
  }
}

}  // namespace moesaic::cuda
