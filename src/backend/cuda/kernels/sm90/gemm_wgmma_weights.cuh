// gemm_wgmma.cuh: the weight formats: what a stage holds of a warp's 16 rows, and how it becomes A fragments.
// A format has kWgmma (else mma.sync multiplies), kBf16 (of the operands; with kFp8 they are E5M2 and E4M3),
// kGrouped (experts), kBlocks (of a stage), kStageBytes, Source (fetches stages of 16 rows), Tops (what the
// rows' scales are relative to), load() and expand().
#pragma once

#include <cuda_fp8.h>

#include <algorithm>

#include "backend/cuda/kernels/common/dequant.cuh"
#include "backend/cuda/kernels/common/gemm_tile.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/e4m3.cuh"
#include "backend/cuda/kernels/ptx/ldmatrix.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/kernels/ptx/wgmma.cuh"
#include "backend/cuda/kernels/sm90/gemm_wgmma.h"
#include "backend/cuda/kernels/sm90/slab.cuh"

namespace moesaic::cuda::sm90 {

inline constexpr int kGroups = 3;  // warpgroups that consume
inline constexpr int kGroupRows = 64;
inline constexpr int kTileRows = kGroups * kGroupRows;
inline constexpr int kWgmmaWarps = 4 * kGroups;
inline constexpr int kWgmmaThreads = 128 * (kGroups + 1);
// A tile that another one follows has at least so many stages: then fetching is ahead by one tile at most.
inline constexpr int kFewestStages = 7;
inline constexpr int kSharedLimit = 233472, kSharedReserved = 1024;  // for a multiprocessor; for each CTA

// Bytes of a token's 64 columns of activations.
template <bool kFp8>
inline constexpr int kStepBytes = kFp8 ? 64 : 128;

struct WgmmaParams {
  const uint8_t* weights;
  const uint8_t* scales;  // dense, of a byte: of a Matrix, as tops
  const uint8_t* tops;
  ActivationTiles x;
  int row_tiles;     // tiles of rows of an expert
  int weight_tiles;  // 32 rows each
  int stages;        // along the contraction
  int split;         // dense: ActivationTiles::split
  float factor;
  // Dense: tiles of the same rows follow each other, not those of the same tokens. The operand with fewer
  // bytes should be the one that is read again: the other may not fit into L2.
  bool tokens_first = false;
};

__device__ inline WorkTile work_tile_at(const ActivationTiles& t, int index) {
  if (t.work_tiles != nullptr) return t.work_tiles[index];
  return {0, index * t.tile, min(t.tile, t.tokens - index * t.tile), index * t.tile};
}
// Tokens that the work tile's tile has room for.
__device__ inline int width_of(const ActivationTiles& t, const WorkTile& work_tile) {
  return t.work_tiles != nullptr ? tile_width(work_tile.count) : t.tile;
}
__device__ inline int work_tile_count_of(const ActivationTiles& t) {
  return t.work_tiles != nullptr ? *t.work_tile_count : (t.tokens + t.tile - 1) / t.tile;
}

// The same in all lanes, so that it may live in a uniform register.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }
__device__ inline int warp_index() { return uniform(threadIdx.x / 32); }

// F16's 2^(s + shift - 15) of the E8M0 scales s in two bytes, zero below its normal numbers. shifts: of each,
// in halves.
__device__ __forceinline__ __half2 relative_scales(uint32_t two, uint32_t shifts) {
  const uint32_t bits = __viaddmax_s16x2(__byte_perm(two, 0, 0x4140), shifts, 0) << 10;
  return *reinterpret_cast<const __half2*>(&bits);
}
// The values of `pair`, which are F16.
__device__ __forceinline__ uint32_t scaled(uint32_t pair, __half2 factor) {
  const __half2 v = __hmul2(*reinterpret_cast<const __half2*>(&pair), factor);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// MXFP4 from slabs. A weight becomes value * 2^(s - top), exact in F16 where the block's scale is within 24
// binades of the row's largest, `top`; 2^(top - 128), which is owed, is factor(). A stage is what one warp of
// the decode kernel takes of a slab: 6 blocks. 27 instructions expand 16 rows of a block.
template <bool kDown>
struct SlabWeights {
  static constexpr bool kWgmma = true, kBf16 = false, kFp8 = false, kGrouped = true;
  static constexpr int kBlocks = kBlocksPerWarp, kStageBytes = 2 * kWarpBytes;
  uint32_t words[2][6];
  __half2 factors[2][3];  // two blocks each

  struct Tops {  // the reference of the scales of rows lane / 4 and + 8
    uint8_t top[2];
    __device__ float factor(int h) const { return __uint_as_float((top[h] - 1u) << 23); }
    __device__ uint32_t shifts(int h) const { return ((30u - top[h]) & 0xFFFFu) * 0x10001u; }
  };
  // Sixteen rows: a slab pair.
  struct Source {
    const uint8_t* slab;  // the upper one, this lane's next 16 bytes
    int slab_pair;        // counted from FC2's first one made of single slabs
    Tops tops;
    // Rows that are not there, which nobody stores, are the last ones.
    __device__ void open(const WgmmaParams& p, int expert, int row, int, int lane) {
      const uint8_t* weights = p.weights + expert * expert_bytes<kDown>(p.x.layout);
      row = min(row, p.weight_tiles * kWeightTileRows - 16);
      slab = weights + slab_offset(p.x.layout, kDown, row / 8, 0, lane * 16);
      slab_pair = row / 16 - p.x.layout.fc2_slab_pairs;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        tops.top[h] =
            __ldg(weights + slab_offset(p.x.layout, kDown, row / 8 + h, kTopThird, kThirdTop + lane / 4));
    }
    // 102 vectors of 16 bytes; of 51 a slab the second 32 belong to both. left: stages, this one counted.
    __device__ void fetch(uint8_t* to, int left, int lane) {
      constexpr int kVectors = kWarpBytes / 16;
      const Strides by = strides(kDown, slab_pair);
      const uint8_t* lower = slab + by.slab - kVectors * 16;
      to += lane * 16;
      cp_async(to, slab);
      cp_async(to + 512, (lane < kVectors - 32 ? slab : lower) + 512);
      cp_async(to + 1024, lower + 1024);
      if (lane < 2 * kVectors - 96) cp_async(to + 1536, lower + 1536);
      slab += kWarpBytes + (left % kWarpsPerThird == 1 ? by.third - kThirdBias : 0);
    }
  };

  __device__ void load(const uint8_t* stage, const Tops& tops, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint8_t* slab = stage + h * kWarpBytes;
      const uint4 u = *reinterpret_cast<const uint4*>(slab + lane * 16);
      const uint2 v = *reinterpret_cast<const uint2*>(slab + kWarpTail + lane * 8);
      words[h][0] = u.x, words[h][1] = u.y, words[h][2] = u.z, words[h][3] = u.w;
      words[h][4] = v.x, words[h][5] = v.y;
#pragma unroll
      for (int i = 0; i < 3; ++i)
        factors[h][i] = relative_scales(
            reinterpret_cast<const uint16_t*>(slab + kWarpScales)[lane / 4 * 3 + i], tops.shifts(h));
    }
  }
  __device__ void expand(int block, uint32_t (&a)[8]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const __half2 factor =
          block % 2 == 0 ? __low2half2(factors[h][block / 2]) : __high2half2(factors[h][block / 2]);
      uint32_t d[4];
      decode(words[h][block], d);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[2 * i + h] = scaled(d[i], factor);
    }
  }
};

// The same for devices without wgmma.
template <bool kDown>
struct MmaSlabWeights : SlabWeights<kDown> {
  static constexpr bool kWgmma = false;
};

// The same in E5M2, which is F16's upper byte: exact where the block's scale is within 14 binades of the
// row's largest, else cut off below 2^-16 of the row's largest weights.
template <bool kDown>
struct Fp8SlabWeights : SlabWeights<kDown> {
  static constexpr bool kFp8 = true;
  __device__ void expand(int block, uint32_t (&a)[8]) const {
    uint32_t f16[8];
    SlabWeights<kDown>::expand(block, f16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first = i / 2 * 4 + i % 2;
      a[i] = __byte_perm(f16[first], f16[first + 2], 0x7531);
    }
  }
};

// 16-bit weights in matrix.h's order, two blocks a stage.
template <bool kBf16_>
struct PlainWeights {
  static constexpr bool kWgmma = true, kBf16 = kBf16_, kFp8 = false, kGrouped = false;
  static constexpr int kBlocks = 2, kHalfBlock = 1024, kStageBytes = kBlocks * kHalfBlock;
  const uint8_t* at;

  struct Tops {
    __device__ float factor(int) const { return 1.0f; }
  };
  struct Source {
    const uint8_t* data;
    Tops tops;
    // Rows that do not exist are read from the last weight tile, and not stored.
    __device__ void open(const WgmmaParams& p, int, int row, int first_stage, int lane) {
      const int64_t weight_tile = min(row / kWeightTileRows, p.weight_tiles - 1);
      data = p.weights + (weight_tile * p.stages + first_stage) * (2 * kStageBytes) +
             row / 16 % 2 * kHalfBlock + lane * 16;
    }
    __device__ void fetch(uint8_t* to, int, int lane) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        cp_async(to + i * 512 + lane * 16, data + i / 2 * (2 * kHalfBlock) + i % 2 * 512);
      data += 2 * kStageBytes;
    }
  };

  __device__ void load(const uint8_t* stage, const Tops&, int lane) { at = stage + lane * 16; }
  __device__ void expand(int block, uint32_t (&a)[8]) const {
    const uint4 lo = *reinterpret_cast<const uint4*>(at + block * kHalfBlock);
    const uint4 hi = *reinterpret_cast<const uint4*>(at + block * kHalfBlock + 512);
    a[0] = lo.x, a[1] = lo.y, a[2] = lo.z, a[3] = lo.w;
    a[4] = hi.x, a[5] = hi.y, a[6] = hi.z, a[7] = hi.w;
  }
};

// Weights of a byte in matrix.h's order, two blocks a stage, with the scales of all 32 rows of the weight
// tile.
template <class Codes>
struct ByteWeights {
  static constexpr bool kWgmma = true, kBf16 = false, kFp8 = false, kGrouped = false;
  static constexpr int kBlocks = 2, kHalfBlock = 512, kDataBytes = kBlocks * kHalfBlock;
  static constexpr int kScaleBytes = kBlocks * Codes::kScaleBytes, kStageBytes = kDataBytes + kScaleBytes;
  const uint8_t* at;
  __half2 factors[kBlocks];  // for rows lane / 4 and + 8

  using Tops = typename Codes::Tops;
  struct Source {
    const uint8_t *data, *scales;  // this lane's next 16 bytes
    Tops tops;
    // Rows that do not exist are read from the last weight tile, and not stored.
    __device__ void open(const WgmmaParams& p, int, int row, int first_stage, int lane) {
      const int64_t weight_tile = min(row / kWeightTileRows, p.weight_tiles - 1);
      const int64_t stage = weight_tile * p.stages + first_stage;
      tops.half = row / 16 % 2;
      data = p.weights + stage * (2 * kDataBytes) + tops.half * kHalfBlock + lane * 16;
      scales = p.scales + stage * kScaleBytes + lane * 16;
      tops.open(p.tops + weight_tile * kWeightTileRows, lane);
    }
    __device__ void fetch(uint8_t* to, int, int lane) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        cp_async(to + i * kHalfBlock + lane * 16, data + i * (2 * kHalfBlock));
      if (lane < kScaleBytes / 16) cp_async(to + kDataBytes + lane * 16, scales);
      data += 2 * kDataBytes, scales += kScaleBytes;
    }
  };

  __device__ void load(const uint8_t* stage, const Tops& tops, int lane) {
    at = stage + lane * 16;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      factors[i] = Codes::scales(stage + kDataBytes + i * Codes::kScaleBytes, tops, lane);
  }
  __device__ void expand(int block, uint32_t (&a)[8]) const {
    const uint4 v = *reinterpret_cast<const uint4*>(at + block * kHalfBlock);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    const __half2 upper = __low2half2(factors[block]), lower = __high2half2(factors[block]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 f16 = Codes::to_f16(words[i]);
      a[2 * i] = scaled(f16.x, upper), a[2 * i + 1] = scaled(f16.y, lower);
    }
  }
};

// A weight becomes value * 2^(6 + s - top), exact in F16 where the block's scale is within 20 binades of the
// row's largest.
struct Mxfp8Codes {
  static constexpr int kScaleBytes = 32;
  struct Tops {
    uint32_t shifts;  // 21 - top of rows lane / 4 and + 8, in halves
    int half;         // the warp's rows' half of the weight tile
    __device__ void open(const uint8_t* tops, int lane) {
      tops += lane / 4 * 4 + 2 * half;
      shifts = ((21u - __ldg(tops)) & 0xFFFFu) | (21u - __ldg(tops + 1)) << 16;
    }
    __device__ float factor(int h) const {
      return __uint_as_float((21u - (shifts >> 16 * h)) << 23 & 0x7F800000u) * 0x1p-6f;
    }
  };
  __device__ static __half2 scales(const uint8_t* block, const Tops& tops, int lane) {
    return relative_scales(reinterpret_cast<const uint16_t*>(block)[lane / 4 * 2 + tops.half], tops.shifts);
  }
  __device__ static uint2 to_f16(uint32_t word) { return e4m3_to_f16(word); }
};

// A weight becomes code * scale, rounded to F16. No scale may be above 511.
struct Q8Codes {
  static constexpr int kScaleBytes = 64;
  struct Tops {
    int half;
    __device__ void open(const uint8_t*, int) {}
    __device__ float factor(int) const { return 1.0f; }
  };
  __device__ static __half2 scales(const uint8_t* block, const Tops& tops, int lane) {
    return reinterpret_cast<const __half2*>(block)[lane / 4 * 2 + tops.half];
  }
  __device__ static uint2 to_f16(uint32_t word) {
    return {Q8Source::widen(word, 0x4140), Q8Source::widen(word, 0x4342)};
  }
};

}  // namespace moesaic::cuda::sm90
