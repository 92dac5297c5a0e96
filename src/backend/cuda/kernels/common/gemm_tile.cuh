// Shared by gemm_small_m.cuh and gemm_large_m.cuh: parameters, the MMA loop's body and the order of sums.
//
// Maths    the contraction is cut into kSlices fixed slices of blocks; a slice is summed block by block,
//          and the slices are added in order. Both kernels keep to it, so a token's result has the same
//          bits with any tile and in any batch.
// Shapes   weights are M (a weight tile: 32 rows, two MMA tiles), tokens are N (tiles of 8), a block of 32
//          columns is K. Sums::add() takes one block: two MMAs for each MMA tile and tile of tokens.
//          In FP8 a block of the loop is 64 columns, the two of a Mxfp4Fp8Source: an MMA for each of them.
// Roles    one warp has the sums of one weight tile in registers, 8 floats a lane for each 8 tokens.
#pragma once

#include "backend/cuda/kernels/common/dequant.cuh"
#include "backend/cuda/kernels/common/epilogue.cuh"
#include "backend/cuda/kernels/common/gemm.h"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"

namespace moesaic::cuda {

inline constexpr int kSlices = 8;
__host__ __device__ inline int slice_start(int blocks, int slice) { return blocks * slice / kSlices; }

struct GemmParams {
  const uint8_t* data;
  const uint8_t* scales;
  int weight_tiles, blocks;
  const uint16_t* x;
  const int32_t* rows;
  int cols, tokens;  // cols: of 16 bits
  float factor;
  const WorkTile* work_tiles;
  const int* work_tile_count;
};

template <class Source>
GemmParams params_of(const Matrix& w, const Activations& x) {
  const int blocks = static_cast<int>(w.cols / kBlock) / (Source::kFp8 ? 2 : 1);
  return {.data = w.data.as<uint8_t>(),
          .scales = w.scales.as<uint8_t>(),
          .weight_tiles = static_cast<int>(w.weight_tiles),
          .blocks = blocks,
          .x = static_cast<const uint16_t*>(x.x),
          .rows = x.rows,
          .cols = blocks * kBlock,
          .tokens = x.tokens,
          .factor = x.factor * Source::kFactor,
          .work_tiles = x.work_tiles,
          .work_tile_count = x.work_tile_count};
}

// Blocks along the tokens: work tiles that there may be, or tiles of them all.
inline int token_blocks(const Activations& x, int tile) {
  return x.work_tiles != nullptr ? x.tokens : (x.tokens + tile - 1) / tile;
}

// v += d, in rows lane / 4 and + 8 times their scales.
__device__ inline void add_scaled(float (&v)[4], const float (&d)[4], float s0, float s1) {
  v[0] = fmaf(d[0], s0, v[0]);
  v[1] = fmaf(d[1], s0, v[1]);
  v[2] = fmaf(d[2], s1, v[2]);
  v[3] = fmaf(d[3], s1, v[3]);
}

// A weight tile's sums for kTiles tiles of 8 tokens.
template <class Source, int kTiles>
struct Sums {
  float v[2][kTiles][4] = {};

  // One block: w times the tokens' 32 activations each, x[t] being columns 8 c .. 8 c + 7 of token g of tile
  // t.
  __device__ void add(const Source& w, const uint4 (&x)[kTiles]) {
    if constexpr (Source::kFp8) {
      add_fp8(w, x);
    } else {
      add_16_bits(w, x);
    }
  }

 private:
  __device__ void add_fp8(const Source& w, const uint4 (&x)[kTiles]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Fragment f = w.fragment(m, i);
        const float s0 = w.scale(m, 0, i), s1 = w.scale(m, 1, i);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float d[4] = {};
          mma_fp8(d, f.a, i == 0 ? x[t].x : x[t].z, i == 0 ? x[t].y : x[t].w);
          add_scaled(v[m][t], d, s0, s1);
        }
      }
    }
  }
  __device__ void add_16_bits(const Source& w, const uint4 (&x)[kTiles]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const Fragment f0 = w.fragment(m, 0), f1 = w.fragment(m, 1);
      const float s0 = w.scale(m, 0), s1 = w.scale(m, 1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (Source::kScaled) {
          float d[4] = {};
          mma<Source::kBf16>(d, f0.a, x[t].x, x[t].y);
          mma<Source::kBf16>(d, f1.a, x[t].z, x[t].w);
          add_scaled(v[m][t], d, s0, s1);
        } else {
          mma<Source::kBf16>(v[m][t], f0.a, x[t].x, x[t].y);
          mma<Source::kBf16>(v[m][t], f1.a, x[t].z, x[t].w);
        }
      }
    }
  }
};

}  // namespace moesaic::cuda
