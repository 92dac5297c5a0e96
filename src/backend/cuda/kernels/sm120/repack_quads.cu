// One warp packs one block of one weight tile.
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/stored.cuh"
#include "backend/cuda/kernels/sm120/repack_quads.h"
#include "backend/cuda/layout/quad_layout.h"

namespace moesaic::cuda::sm120 {
namespace {

constexpr int kWarps = 8;

// A lane's eight columns of rows 16 m + g and 16 m + 8 + g.
__device__ void put_e2m1(uint8_t* weight_tile, int block, int m, const uint8_t (&codes)[2][8]) {
  for (int j = 0; j < 2; ++j) {
    uint32_t word = 0;
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < 4; ++i) word |= weight_bits(codes[h][4 * j + i], h, i);
    }
    *reinterpret_cast<uint32_t*>(weight_tile + weight_word_at(block, threadIdx.x % 32, m, j)) = word;
  }
}
__device__ void put_e4m3(uint8_t* weight_tile, int block, int m, const uint8_t (&codes)[2][8]) {
  for (int j = 0; j < 2; ++j) {
    for (int h = 0; h < 2; ++h) {
      uint32_t word = 0;
      for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(codes[h][4 * j + i]) << (8 * i);
      *reinterpret_cast<uint32_t*>(weight_tile + weight_word_at(block, threadIdx.x % 32, m, j, h)) = word;
    }
  }
}

template <Element kElement>
__global__ void __launch_bounds__(kWarps * 32) repack_kernel(const RepackParams p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= p.experts * p.weight_tiles * p.blocks) return;
  const int64_t weight_tile_index = index / p.blocks, expert = weight_tile_index / p.weight_tiles,
                weight_tile = weight_tile_index % p.weight_tiles;
  const int block = static_cast<int>(index % p.blocks), blocks = static_cast<int>(p.blocks);
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const Raw sources[2] = {of_expert(p.source[0], expert), of_expert(p.source[1], expert)};
  uint8_t* to = p.data + weight_tile_index * weight_tile_bytes(kElement, blocks);
  for (int m = 0; m < 2; ++m) {
    uint8_t codes[2][8];
    for (int h = 0; h < 2; ++h) {
      const uint8_t scale = mx_codes(p, row_at(p, sources, weight_tile, m, h, g), block, c, codes[h]);
      if (c != 0) continue;
      const int row = 16 * m + 8 * h + g;
      to[weight_scale_at(kElement, row, block)] = scale;
      // Columns that a last quad lacks get 0, which is no NaN.
      for (int b = blocks; block + 1 == blocks && b % kQuad != 0; ++b)
        to[weight_scale_at(kElement, row, b)] = 0;
    }
    if constexpr (kElement == Element::kE2M1) {
      put_e2m1(to, block, m, codes);
    } else {
      put_e4m3(to, block, m, codes);
    }
  }
}

}  // namespace

Status repack(const RepackParams& params, cudaStream_t stream) {
  const int64_t warps = params.experts * params.weight_tiles * params.blocks;
  const auto blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);
  const auto kernel =
      params.kind == Kind::kMxfp8Quads ? repack_kernel<Element::kE4M3> : repack_kernel<Element::kE2M1>;
  return launch_alone(kernel, dim3(blocks), dim3(kWarps * 32), 0, stream, params);
}

}  // namespace moesaic::cuda::sm120
