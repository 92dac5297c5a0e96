// One warp makes one quad of one group: lane 4 g + c reads columns 8 c .. 8 c + 7 of four blocks of token g,
// four lanes find a block's scale, and the warp writes 1,056 bytes as they will be read, or 544.
//
//   grid: (quads / 8, jobs, groups of a tile); bytes: 2 of each activation read, 1.03 or 0.53 written
#include "backend/cuda/kernels/common/norm.cuh"
#include "backend/cuda/kernels/sm120/quantize.cuh"
#include "backend/cuda/kernels/sm120/tokens.h"
#include "backend/cuda/kernels/sm120/work_tile.cuh"

namespace moesaic::cuda::sm120a {
namespace {

constexpr int kExpandWarps = 8;

// Columns 8 c .. 8 c + 7 of a block, quantised, and the block's scale.
template <Element kElement>
struct Eighth {
  static constexpr int kWords = kElement == Element::kE2M1 ? 1 : 2;
  uint32_t codes[kWords] = {};
  uint32_t scale = 0;
};
template <Element kElement>
__device__ Eighth<kElement> quantize(const uint4& bf16) {
  const uint32_t words[4] = {bf16.x, bf16.y, bf16.z, bf16.w};
  float v[8];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
    largest = max(largest, magnitude_bits(v[i]));
  }
  largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
  largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
  Eighth<kElement> e;
  e.scale = e8m0_of<kElement>(largest);
  const float inverse = inverse_of(e.scale);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    e.codes[token_bit(kElement, i) / 32] |= code_of<kElement>(v[i], inverse) << token_bit(kElement, i) % 32;
  return e;
}

template <Element kElement>
__global__ void __launch_bounds__(kExpandWarps * 32)
    expand_kernel(const __nv_bfloat16* x, const int32_t* rows, const Tokens out) {
  wait_for_predecessor();
  launch_dependents();
  const int blocks = out.cols / kBlock, quad = blockIdx.x * kExpandWarps + threadIdx.x / 32;
  if (quad >= quads_of(blocks)) return;
  const Job job = job_of(out);
  const int group = blockIdx.z, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  if (group * kGroup >= job.count) return;
  const int token = group * kGroup + g, slot = job.first + token;
  const bool real = token < job.count;
  const int64_t row = !real ? 0 : rows != nullptr ? rows[slot] : slot;
  const __nv_bfloat16* from = x + row * out.cols + quad * kQuad * kBlock + 8 * c;
  uint4 values[kQuad];
#pragma unroll
  for (int b = 0; b < kQuad; ++b)
    values[b] = real && b < blocks_in_quad(blocks, quad) ? *reinterpret_cast<const uint4*>(from + b * kBlock)
                                                         : make_uint4(0, 0, 0, 0);
  uint8_t* to = out.data + (job.start / kGroup + group) * group_bytes(kElement, blocks) +
                quad * group_quad_bytes(kElement);
  constexpr int kWords = Eighth<kElement>::kWords;
  uint32_t scales = 0, words[kQuad * kWords];
#pragma unroll
  for (int b = 0; b < kQuad; ++b) {
    const Eighth<kElement> e = quantize<kElement>(values[b]);
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[b * kWords + i] = e.codes[i];
    scales |= e.scale << (8 * b);
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    reinterpret_cast<uint4*>(to + i * kLaneVectorBytes)[lane] = {words[4 * i], words[4 * i + 1],
                                                                 words[4 * i + 2], words[4 * i + 3]};
  if (c == 0) *reinterpret_cast<uint32_t*>(to + token_scale_at(kElement, g, 0)) = scales;
}

// A thread block a row, a thread eight columns at a time: MXFP8.
__global__ void __launch_bounds__(kNormThreads) norm_expand_kernel(const Norm p, const Tokens out) {
  extern __shared__ float4 normed[];  // [hidden / 4]
  __shared__ float scratch[kNormThreads / 32];
  wait_for_predecessor();
  launch_dependents();
  constexpr Element kElement = Element::kE4M3;
  const int r = blockIdx.x, eighths = p.hidden / 8;
  norm_row(p, p.row_map != nullptr ? p.row_map[r] : r, normed, scratch);
  uint8_t* to = out.data + r / kGroup * group_bytes(kElement, p.hidden / kBlock);
  // Lanes beyond the row keep the shuffles whole.
  for (int i = threadIdx.x; i < (eighths + 31) / 32 * 32; i += kNormThreads) {
    const int from = 2 * min(i, eighths - 1);
    const uint2 lo = half_words(normed[from], 1.0f, true), hi = half_words(normed[from + 1], 1.0f, true);
    const Eighth<kElement> e = quantize<kElement>({lo.x, lo.y, hi.x, hi.y});
    if (i >= eighths) continue;
    *reinterpret_cast<uint2*>(to + token_bytes_at(kElement, r % kGroup, i / 4, i % 4)) = {e.codes[0],
                                                                                          e.codes[1]};
    if (i % 4 == 0) to[token_scale_at(kElement, r % kGroup, i / 4)] = static_cast<uint8_t>(e.scale);
  }
}

__global__ void gather_kernel(const uint4* x, const int32_t* rows, int slots, int vectors, uint4* out) {
  wait_for_predecessor();
  launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < static_cast<int64_t>(slots) * vectors)
    out[i] = x[int64_t{rows[i / vectors]} * vectors + i % vectors];
}

__global__ void zero_fill_kernel(float4* out, int rows, int vectors, int32_t* identity, float* ones) {
  wait_for_predecessor();
  launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < static_cast<int64_t>(rows) * vectors) out[i] = make_float4(0, 0, 0, 0);
  if (i < rows) identity[i] = static_cast<int32_t>(i), ones[i] = 1.0f;
}

}  // namespace

Status zero_fill(float* out, int rows, int hidden, int32_t* identity, float* ones, cudaStream_t stream) {
  const int64_t vectors = int64_t{rows} * hidden / 4;
  return launch(zero_fill_kernel, dim3(static_cast<unsigned>((vectors + 255) / 256)), dim3(256), 0, stream,
                reinterpret_cast<float4*>(out), rows, hidden / 4, identity, ones);
}

Status expand(const __nv_bfloat16* x, const int32_t* rows, const Tokens& out, cudaStream_t stream) {
  const int quads = quads_of(out.cols / kBlock);
  const auto kernel =
      out.element == Element::kE2M1 ? expand_kernel<Element::kE2M1> : expand_kernel<Element::kE4M3>;
  return launch(kernel, dim3((quads + kExpandWarps - 1) / kExpandWarps, out.most_jobs, out.tile / kGroup),
                dim3(kExpandWarps * 32), 0, stream, x, rows, out);
}

Status norm_expand(const Norm& norm, const Tokens& out, cudaStream_t stream) {
  return launch(norm_expand_kernel, dim3(norm.rows), dim3(kNormThreads), norm.hidden * sizeof(float), stream,
                norm, out);
}

Status gather(const __nv_bfloat16* x, const int32_t* rows, int slots, int cols, __nv_bfloat16* out,
              cudaStream_t stream) {
  const int64_t vectors = int64_t{slots} * cols / 8;
  return launch(gather_kernel, dim3(static_cast<unsigned>((vectors + 255) / 256)), dim3(256), 0, stream,
                reinterpret_cast<const uint4*>(x), rows, slots, cols / 8, reinterpret_cast<uint4*>(out));
}

}  // namespace moesaic::cuda::sm120a
