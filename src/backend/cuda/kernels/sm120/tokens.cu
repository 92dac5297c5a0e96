// expand() and norm_expand(): BF16 rows become MXFP8 tokens in the layout of quad_layout.h.
//
// Maths    quantize.cuh's, the same bits as mx::quantize_mxfp8
// Grid     expand: x: 8 quads, y: work tile, z: group of 8 tokens. norm_expand: a CTA a row.
// CTA      expand: 8 warps, alike: a warp makes one quad of one group. Lane 4 g + c reads columns 8 c .. 8
//          c + 7 of four blocks of token g, four lanes find a block's scale, and the warp writes 1,056
//          bytes as they will be read. norm_expand: 128 threads norm the row (norm.cuh); a thread then has
//          eight columns at a time.
// Ordering Everything is read after the wait for the predecessor; no barriers but norm_row()'s.
// Bytes    2 of each activation read, 1.03 written for each part.
#include "backend/cuda/kernels/common/norm.cuh"
#include "backend/cuda/kernels/sm120/quantize.cuh"
#include "backend/cuda/kernels/sm120/tokens.h"
#include "backend/cuda/kernels/sm120/work_tile.cuh"

namespace moesaic::cuda::sm120 {
namespace {

constexpr int kExpandWarps = 8;

// Columns 8 c .. 8 c + 7 of a block, quantised, and the block's scale: a part of a token.
struct Eighth {
  static constexpr int kWords = 2;
  uint32_t codes[kWords] = {};
  uint32_t scale = 0;
};
// bf16 becomes the error of the rounding, which is the next part's value; BF16 holds it exactly.
__device__ Eighth quantize(uint4& bf16) {
  uint32_t words[4] = {bf16.x, bf16.y, bf16.z, bf16.w};
  float v[8];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
    largest = max(largest, magnitude_bits(v[i]));
  }
  largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
  largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
  Eighth e;
  e.scale = e8m0_of(largest);
  const float inverse = inverse_of(e.scale);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = code_of(v[i], inverse);
    e.codes[i / 4] |= code << 8 * (i % 4);
    v[i] -= value_of(code, e.scale);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = __float_as_uint(v[2 * i]) >> 16 | (__float_as_uint(v[2 * i + 1]) & 0xFFFF0000u);
  bf16 = {words[0], words[1], words[2], words[3]};
  return e;
}

__global__ void __launch_bounds__(kExpandWarps * 32)
    expand_kernel(const __nv_bfloat16* x, const int32_t* rows, const Tokens out) {
  wait_for_predecessor();
  launch_dependents();
  const int blocks = out.cols / kBlock, quad = blockIdx.x * kExpandWarps + threadIdx.x / 32;
  if (quad >= quads_of(blocks)) return;
  const WorkTile work_tile = work_tile_of(out);
  const int group = blockIdx.z, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  if (group * kGroup >= work_tile.count) return;
  const int token = group * kGroup + g, permuted_row = work_tile.first + token;
  const bool real = token < work_tile.count;
  const int64_t row = !real ? 0 : rows != nullptr ? rows[permuted_row] : permuted_row;
  const __nv_bfloat16* from = x + row * out.cols + quad * kQuad * kBlock + 8 * c;
  uint4 values[kQuad];
#pragma unroll
  for (int b = 0; b < kQuad; ++b)
    values[b] = real && b < blocks_in_quad(blocks, quad) ? *reinterpret_cast<const uint4*>(from + b * kBlock)
                                                         : make_uint4(0, 0, 0, 0);
  uint8_t* to = out.data + (work_tile.start / kGroup + group) * out.parts * group_bytes(blocks) +
                quad * kGroupQuadBytes;
  for (int part = 0; part < out.parts; ++part, to += group_bytes(blocks)) {
    constexpr int kWords = Eighth::kWords;
    uint32_t scales = 0, words[kQuad * kWords];
#pragma unroll
    for (int b = 0; b < kQuad; ++b) {
      const Eighth e = quantize(values[b]);
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[b * kWords + i] = e.codes[i];
      scales |= e.scale << (8 * b);
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      reinterpret_cast<uint4*>(to + i * kLaneVectorBytes)[lane] = {words[4 * i], words[4 * i + 1],
                                                                   words[4 * i + 2], words[4 * i + 3]};
    if (c == 0) *reinterpret_cast<uint32_t*>(to + token_scale_at(g, 0)) = scales;
  }
}

// A CTA a row, a thread eight columns at a time: MXFP8.
__global__ void __launch_bounds__(kNormThreads) norm_expand_kernel(const Norm p, const Tokens out) {
  extern __shared__ float4 normed[];  // [hidden / 4]
  __shared__ float scratch[kNormThreads / 32];
  wait_for_predecessor();
  launch_dependents();
  const int r = blockIdx.x, eighths = p.hidden / 8;
  norm_row(p, p.row_map != nullptr ? p.row_map[r] : r, normed, scratch);
  const int64_t bytes = group_bytes(p.hidden / kBlock);
  // Lanes beyond the row keep the shuffles whole.
  for (int i = threadIdx.x; i < (eighths + 31) / 32 * 32; i += kNormThreads) {
    const int from = 2 * min(i, eighths - 1);
    const uint2 lo = half_words(normed[from], 1.0f, true), hi = half_words(normed[from + 1], 1.0f, true);
    uint4 values = {lo.x, lo.y, hi.x, hi.y};
    for (int part = 0; part < out.parts; ++part) {
      const Eighth e = quantize(values);
      if (i >= eighths) continue;
      uint8_t* to = out.data + (r / kGroup * out.parts + part) * bytes;
      *reinterpret_cast<uint2*>(to + token_bytes_at(r % kGroup, i / 4, i % 4)) = {e.codes[0], e.codes[1]};
      if (i % 4 == 0) to[token_scale_at(r % kGroup, i / 4)] = static_cast<uint8_t>(e.scale);
    }
  }
}

}  // namespace

// It asks for the largest carveout although it has no shared memory: the tile that follows has much, and
// kernels with different carveouts do not overlap.
Status expand(const __nv_bfloat16* x, const int32_t* rows, const Tokens& out, cudaStream_t stream) {
  static OncePerDevice prepared;
  const Status status = prepared.run([] { return set_attributes(expand_kernel, {.prefer_shared = true}); });
  if (!status.ok()) return status;
  const int quads = quads_of(out.cols / kBlock);
  return launch(expand_kernel,
                dim3((quads + kExpandWarps - 1) / kExpandWarps, out.most_work_tiles, out.tile / kGroup),
                dim3(kExpandWarps * 32), 0, stream, x, rows, out);
}

Status norm_expand(const Norm& norm, const Tokens& out, cudaStream_t stream) {
  return launch(norm_expand_kernel, dim3(norm.rows), dim3(kNormThreads), norm.hidden * sizeof(float), stream,
                norm, out);
}

}  // namespace moesaic::cuda::sm120
