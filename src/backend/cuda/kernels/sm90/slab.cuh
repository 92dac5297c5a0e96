// The words of eight E2M1 codes, how they are taken apart, and where a slab's bytes stand
// (slab_layout.h draws them).
#pragma once

#include "backend/cuda/layout/slab_layout.h"

namespace moesaic::cuda::sm90 {

// Eight E2M1 values of one word as four FP16 pairs (value x 2^-14). The packing is the inverse over GF(2) of
// these eight operations (four shifts, four LOP3); without the XORs no packing needs fewer than nine.
constexpr uint32_t kFp16Mask = 0x8E008E00u;
__device__ __forceinline__ void decode(uint32_t w, uint32_t (&d)[4]) {
  d[0] = (w << 9) & kFp16Mask;
  d[1] = (w ^ (w >> 3)) & kFp16Mask;
  d[2] = (w ^ (w << 4)) & kFp16Mask;
  d[3] = (w ^ (w << 7)) & kFp16Mask;
}
// decode() as equations: bit 9, 10, 11 (E E M from low to high) and 15 (sign) of each half of d[0..3], each
// the XOR of one or two bits of the packed word. inverse.column[i] = what bit i of the eight codes
// contributes to the word.
struct Inverse {
  uint32_t column[32];
};
__host__ __device__ constexpr Inverse make_inverse() {
  constexpr int kPosition[4] = {9, 10, 11, 15}, kShift[4] = {9, -3, 4, 7};
  uint64_t rows[32] = {};
  for (int i = 0; i < 32; ++i) {
    const int code = i / 4, d = code / 2, at = kPosition[i % 4] + 16 * (code & 1);
    uint32_t r = d ? 1u << at : 0;
    const int from = at - kShift[d];
    if (from >= 0 && from < 32) r ^= 1u << from;
    rows[i] = r | (uint64_t)1 << (32 + i);
  }
  for (int c = 0; c < 32; ++c) {
    int pivot = c;
    while (!(rows[pivot] >> c & 1))
      ++pivot;  // out of bounds, so no constant, if decode() were not invertible
    const uint64_t swap = rows[pivot];
    rows[pivot] = rows[c];
    rows[c] = swap;
    for (int r = 0; r < 32; ++r)
      if (r != c && rows[r] >> c & 1) rows[r] ^= rows[c];
  }
  Inverse inverse{};
  for (int r = 0; r < 32; ++r)
    for (int i = 0; i < 32; ++i)
      if (rows[r] >> (32 + i) & 1) inverse.column[i] |= 1u << r;
  return inverse;
}

__device__ inline uint32_t pack_word(uint32_t codes) {
  constexpr Inverse kInverse = make_inverse();
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (codes >> i & 1) word ^= kInverse.column[i];
  }
  return word;
}

// Two E8M0 scales, as F32.
__device__ __forceinline__ float scale_low(uint32_t v) { return __uint_as_float((v & 0xFFu) << 23); }
__device__ __forceinline__ float scale_high(uint32_t v) { return __uint_as_float((v << 15) & 0x7F800000u); }

// With gpt-oss's alpha and limit.
__device__ __forceinline__ float swiglu(float gate, float up) {
  gate = fminf(gate, 7.0f);
  up = fminf(fmaxf(up, -7.0f), 7.0f);
  return __fdividef(gate, 1.0f + __expf(-1.702f * gate)) * (up + 1.0f);
}

// Where a slab pair's slabs stand in it: third by third, but for two of FC2's single slabs, which follow each
// other whole and are a slab pair for the kernels that read FC2 in order. slab_pair: its distance from the
// first such one.
struct Strides {
  int slab, third;
};
__device__ __forceinline__ Strides strides(bool down, int slab_pair) {
  return down && slab_pair >= 0 ? Strides{kSlabBytes, kSlabThird} : Strides{kSlabThird, kSlabPairThird};
}

template <bool kDown>
__host__ __device__ inline size_t expert_bytes(const SlabLayout& layout) {
  return kDown ? layout.fc2_bytes() : layout.fc1_bytes();
}

// Offset of byte `at` of third `third` of a slab inside one expert's matrix.
__device__ inline size_t slab_offset(const SlabLayout& layout, bool down, int slab, int third, int at) {
  const Strides by = strides(down, slab / 2 - layout.fc2_slab_pairs);
  return (size_t)(slab / 2) * kSlabPairBytes + slab % 2 * by.slab + third * by.third + at;
}

}  // namespace moesaic::cuda::sm90
