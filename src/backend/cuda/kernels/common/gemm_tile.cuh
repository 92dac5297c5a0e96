// Shared by gemm_small_m.cuh and gemm_large_m.cuh: parameters, the MMA loop's body and the order of sums.
//
// Maths    the contraction is cut into kSlices fixed slices of blocks; a slice is summed block by block,
//          and the slices are added in order. Both kernels keep to it, so a token's result has the same
//          bits with any tile and in any batch.
// Shapes   weights are M (a weight tile: 32 rows, two MMA tiles), tokens are N (tiles of 8), a block of 32
//          columns is K. Sums::add() takes one block: two MMAs for each MMA tile and tile of tokens.
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
  int cols, tokens;
  float factor;
  const WorkTile* work_tiles;
  const int* work_tile_count;
};

// A weight tile's sums for kTiles tiles of 8 tokens.
template <class Source, int kTiles>
struct Sums {
  float v[2][kTiles][4] = {};

  // One block: w times the tokens' 32 activations each, x[t] being columns 8 c .. 8 c + 7 of token g of tile
  // t.
  __device__ void add(const Source& w, const uint4 (&x)[kTiles]) {
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
          v[m][t][0] = fmaf(d[0], s0, v[m][t][0]);
          v[m][t][1] = fmaf(d[1], s0, v[m][t][1]);
          v[m][t][2] = fmaf(d[2], s1, v[m][t][2]);
          v[m][t][3] = fmaf(d[3], s1, v[m][t][3]);
        } else {
          mma<Source::kBf16>(v[m][t], f0.a, x[t].x, x[t].y);
          mma<Source::kBf16>(v[m][t], f1.a, x[t].z, x[t].w);
        }
      }
    }
  }
};

}  // namespace moesaic::cuda
