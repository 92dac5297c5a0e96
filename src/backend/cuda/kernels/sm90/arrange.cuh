// Rows of 16-bit activations become the tiles that wgmma reads (gemm_wgmma.h): as they are, or in FP8.
//
// Grid     x: eight tokens; y: work tile; z: parts of the columns (F16)
// CTA      a warp a token, or a part of its columns
// Ordering x is read after the wait for the predecessor; chunks of 16 bytes are written once each.
// Resident No CTA waits for another.
// Bytes    each value once, and once again as it is stored.
#pragma once

#include "backend/cuda/kernels/sm90/gemm_wgmma_weights.cuh"

namespace moesaic::cuda::sm90 {

// A warp a token, or 32 blocks of it: lane (block, q) has chunk q of the block, for wgmma from four places 16
// bytes apart.
inline constexpr int kArrangeWarps = 8,
                     kAhead = 4;  // kAhead: blocks that a lane loads before the first is stored
__global__ void __launch_bounds__(kArrangeWarps * 32)
    arrange_kernel(const uint32_t* x, const int32_t* rows, const ActivationTiles tiles) {
  wait_for_predecessor();
  launch_dependents();
  if (static_cast<int>(blockIdx.y) >= work_tile_count_of(tiles)) return;
  const WorkTile work_tile = work_tile_at(tiles, blockIdx.y);
  const int token = blockIdx.x * kArrangeWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= work_tile.count) return;
  const int permuted_row = work_tile.first + token, width = width_of(tiles, work_tile), q = lane % 4;
  const uint32_t* from =
      x + static_cast<int64_t>(rows != nullptr ? rows[permuted_row] : permuted_row) * (tiles.cols / 2);
  uint8_t* to = static_cast<uint8_t*>(tiles.data) + static_cast<int64_t>(work_tile.start) * tiles.cols * 2 +
                token * 128;
  const int blocks = tiles.cols / kBlock;
  for (int first = blockIdx.z * (8 * kAhead) + lane / 4; first < blocks; first += gridDim.z * (8 * kAhead)) {
    uint4 chunk[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t* at = from + min(first + 8 * i, blocks - 1) * (kBlock / 2);
      chunk[i] = {at[q], at[q + 4], at[q + 8], at[q + 12]};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int block = first + 8 * i, place = chunk_place(block % 2 * 4 + q, token);
      if (block < blocks)
        *reinterpret_cast<uint4*>(to + static_cast<int64_t>(block / 2) * width * 128 + place * 16) = chunk[i];
    }
  }
}

// The same in FP8, a warp a token: lane (block, q) has chunk q of the block's two.
__global__ void __launch_bounds__(kArrangeWarps * 32)
    arrange_fp8_kernel(const uint2* x, const int32_t* rows, const ActivationTiles tiles) {
  wait_for_predecessor();
  launch_dependents();
  if (static_cast<int>(blockIdx.y) >= work_tile_count_of(tiles)) return;
  const WorkTile work_tile = work_tile_at(tiles, blockIdx.y);
  const int token = blockIdx.x * kArrangeWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= work_tile.count) return;
  const int width = width_of(tiles, work_tile), q = lane % 2, blocks = tiles.cols / kBlock;
  const uint2* from = x + static_cast<int64_t>(rows[work_tile.first + token]) * (tiles.cols / 4);
  uint8_t* to =
      static_cast<uint8_t*>(tiles.data) + static_cast<int64_t>(work_tile.start) * tiles.cols + token * 64;
#pragma unroll 2
  for (int block = lane / 2; block < blocks; block += 16) {
    uint32_t chunk[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint2 four = from[block * (kBlock / 4) + 2 * c + q];
      chunk[c] = f16_to_e4m3(four.x, kFp8Scale) | f16_to_e4m3(four.y, kFp8Scale) << 16;
    }
    const int place = fp8_place(block % 2 * 2 + q, token);
    *reinterpret_cast<uint4*>(to + static_cast<int64_t>(block / 2) * width * 64 + place * 16) = {
        chunk[0], chunk[1], chunk[2], chunk[3]};
  }
}

}  // namespace moesaic::cuda::sm90
