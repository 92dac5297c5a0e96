// One warp packs one block of one unit.
#include "backend/cuda/sm120a/layout.h"
#include "backend/cuda/sm120a/repack.h"
#include "backend/cuda/stored.cuh"

namespace moesaic::cuda::sm120a {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(kWarps * 32) repack_kernel(const RepackExperts p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= p.experts * p.units * p.blocks) return;
  const int64_t unit_index = index / p.blocks, expert = unit_index / p.units;
  const int unit = static_cast<int>(unit_index % p.units), block = static_cast<int>(index % p.blocks);
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  uint8_t* to = p.data + unit_index * unit_bytes(p.blocks);
  for (int m = 0; m < 2; ++m) {
    uint32_t words[2] = {};
    for (int h = 0; h < 2; ++h) {
      const Raw s = of_expert(p.source[p.pairs ? h : 0], expert);
      const int64_t row = p.pairs ? unit * 16 + 8 * m + g : unit * 32 + 16 * m + 8 * h + g;
      uint8_t codes[8] = {};
      const uint8_t scale = row < s.rows ? mxfp4_codes(s, row, block, c, codes) : 0;
      if (scale == 255) *p.fault = kNanScale;
      for (int i = 0; i < 8; ++i) words[i / 4] |= weight_bits(codes[i], h, i % 4);
      if (c == 0) to[weight_scale_at(16 * m + 8 * h + g, block)] = scale;
    }
    for (int j = 0; j < 2; ++j)
      *reinterpret_cast<uint32_t*>(to + weight_word_at(block, lane, m, j)) = words[j];
  }
}

}  // namespace

Status repack(const RepackExperts& params, cudaStream_t stream) {
  const int64_t warps = params.experts * params.units * params.blocks;
  repack_kernel<<<static_cast<unsigned>((warps + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(params);
  return check(cudaGetLastError(), "repack");
}

}  // namespace moesaic::cuda::sm120a
