// Experts to slabs.
#pragma once

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/stored.cuh"
#include "backend/cuda/kernels/sm90/repack_slabs.h"
#include "backend/cuda/kernels/sm90/slab.cuh"

namespace moesaic::cuda::sm90 {

// A CTA a slab: 8 rows, of which in FC1 the even ones are gate rows and the odd ones up rows.
__global__ static void slab_kernel(const SlabParams p) {
  wait_for_predecessor();
  const int slab = blockIdx.x;
  const int64_t expert = blockIdx.y;
  const Raw sources[2] = {of_expert(p.source[0], expert), of_expert(p.source[1], expert)};
  uint8_t* const out = p.out + expert * p.expert_bytes;
  const auto source = [&](int row, int64_t& at) -> const Raw& {
    const int64_t r = 8 * static_cast<int64_t>(slab) + row;
    at = p.down ? r : r / 2;
    return sources[p.down ? 0 : r % 2];
  };
  const auto warp_at = [](int block) { return block / kBlocksPerWarp % kWarpsPerThird * kWarpBytes; };
  for (int i = threadIdx.x; i < 8 * kBlocks * 4; i += blockDim.x) {
    const int row = i / (kBlocks * 4), block = i / 4 % kBlocks, c = i % 4, lane = 4 * row + c;
    const int third = block / (kBlocksPerWarp * kWarpsPerThird), in_warp = block % kBlocksPerWarp;
    int64_t r;
    const Raw& s = source(row, r);
    uint8_t codes[8];
    const uint8_t scale = mxfp4_codes(s, r, block, c, codes);
    if (scale == 255) *p.fault = kNanScale;
    uint32_t packed = 0;
    for (int k = 0; k < 8; ++k) packed |= static_cast<uint32_t>(codes[k]) << (4 * k);
    const int word = in_warp < 4 ? 4 * lane + in_warp : kWarpTail / 4 + 2 * lane + in_warp - 4;
    *reinterpret_cast<uint32_t*>(
        out + slab_offset(p.layout, p.down, slab, third, warp_at(block) + 4 * word)) = pack_word(packed);
    if (c == 0)
      out[slab_offset(p.layout, p.down, slab, third,
                      warp_at(block) + kWarpScales + row * kBlocksPerWarp + in_warp)] = scale;
  }
  if (threadIdx.x >= 8) return;
  int64_t r;
  const Raw& s = source(threadIdx.x, r);
  uint8_t codes[8], top = 1;
  for (int block = 0; block < kBlocks; ++block) top = max(top, mxfp4_codes(s, r, block, 0, codes));
  out[slab_offset(p.layout, p.down, slab, kTopThird, kThirdTop + threadIdx.x)] = top;
  const __nv_bfloat16 bias = __float2bfloat16_rn(p.bias[&s - sources][expert * s.rows + r]);
  *reinterpret_cast<__nv_bfloat16*>(
      out + slab_offset(p.layout, p.down, slab, 0, kThirdBias + 2 * threadIdx.x)) = bias;
}

}  // namespace moesaic::cuda::sm90
