// The activations of dense_decode in shared memory: a row a token, a place in it for every block of 32
// columns.
//
//   16-bit kinds  64 bytes: the columns
//   kQ8_0         80 bytes: the columns as 16-bit integers of one scale, the upper bytes and then the lower,
//   and
//                 an Integers. They meet the weights in MMAs of bytes: no weight is widened. Their error,
//                 2^-16 of the block's largest, is below F16's for what is within 2^5 of it.
#pragma once

#include "backend/cuda/norm.cuh"
#include "backend/cuda/tile.cuh"

namespace moesaic::cuda::sm90a {

inline constexpr int kDenseRanks = 2;  // thread blocks that share a contraction

template <class Source>
inline constexpr bool kByIntegers = std::is_same_v<Source, Q8Source>;
template <class Source>
inline constexpr int kPlaceBytes = kByIntegers<Source> ? 80 : 64;

// Of one block and token. A weight is stored plus 128, so a sum of products starts from -128 times the sum of
// the activations' bytes; and from kMagic, so that the sum's bits are those of the float kMagicFloat + sum.
struct Integers {
  int32_t upper, lower;  // where the sums start
  float scale;
  int32_t unused;
};
inline constexpr int32_t kMagic = 0x4B400000;
inline constexpr float kMagicFloat = 12582912.0f;

// Bytes of a row; two tokens' rows stand in different banks.
template <class Source>
__host__ __device__ constexpr int row_stride(int blocks) {
  return ((blocks / kDenseRanks + 1) * kPlaceBytes<Source> + 127) / 128 * 128 + 64;
}

// The threads that multiply, the first of the block.
template <int kThreads>
__device__ inline void sync_multipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

__device__ inline float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// kCount of a block's columns, the lane's; the other lanes of the block, which call it together, have the
// rest.
template <int kCount>
__device__ void put_integers(uint8_t* place, const float (&v)[kCount]) {
  constexpr int kLanes = kBlock / kCount, kMost = 32639;  // 127 * 256 + 127
  const int lane = threadIdx.x % kLanes;
  const uint32_t mask = ((1u << kLanes) - 1) << (threadIdx.x % 32 - lane);
  float top = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) top = max_or_nan(top, fabsf(v[i]));
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2)
    top = max_or_nan(top, __shfl_xor_sync(mask, top, offset));
  const float inverse = top > 0 ? kMost / top : 0.0f;
  uint32_t upper[kCount / 4] = {}, lower[kCount / 4] = {};
  int sums[2] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int q = __float2int_rn(v[i] * inverse), high = (q + 128) >> 8;
    upper[i / 4] |= (high & 255u) << (i % 4 * 8);
    lower[i / 4] |= (q & 255u) << (i % 4 * 8);
  }
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    sums[0] = __dp4a(static_cast<int>(upper[i]), 0x01010101, sums[0]);
    sums[1] = __dp4a(static_cast<int>(lower[i]), 0x01010101, sums[1]);
    reinterpret_cast<uint32_t*>(place)[lane * (kCount / 4) + i] = upper[i];
    reinterpret_cast<uint32_t*>(place + kBlock)[lane * (kCount / 4) + i] = lower[i];
  }
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) {
#pragma unroll
    for (int& sum : sums) sum += __shfl_xor_sync(mask, sum, offset);
  }
  if (lane == 0)
    *reinterpret_cast<Integers*>(place + 2 * kBlock) = {kMagic - 128 * sums[0], kMagic - 128 * sums[1],
                                                        top / kMost, 0};
}

// Four columns, from `column` of the row on.
template <class Source>
__device__ void put_four(uint8_t* row, int column, float4 v, float factor) {
  uint8_t* place = row + column / kBlock * kPlaceBytes<Source>;
  if constexpr (kByIntegers<Source>) {
    put_integers(place, {v.x * factor, v.y * factor, v.z * factor, v.w * factor});
  } else {
    *reinterpret_cast<uint2*>(place + column % kBlock * 2) = half_words(v, factor, Source::kBf16);
  }
}

// Columns [first, end) of all tokens, by kThreads.
template <class Source, int kThreads>
__device__ void copy_rows(const GemmParams& p, uint8_t* rows, int row_bytes, int first, int end) {
  const int vectors = (end - first) / 8;
  for (int i = threadIdx.x; i < p.tokens * vectors; i += kThreads) {
    const int row = i / vectors, at = i % vectors;
    const uint4 eight =
        __ldcg(reinterpret_cast<const uint4*>(p.x + static_cast<int64_t>(row) * p.cols + first) + at);
    uint8_t* place = rows + row * row_bytes + at / 4 * kPlaceBytes<Source>;
    if constexpr (kByIntegers<Source>) {
      const auto* half = reinterpret_cast<const __half2*>(&eight);
      float v[8];
#pragma unroll
      for (int k = 0; k < 4; ++k) v[2 * k] = __low2float(half[k]), v[2 * k + 1] = __high2float(half[k]);
      put_integers(place, v);
    } else {
      reinterpret_cast<uint4*>(place)[at % 4] = eight;
    }
  }
}

// The same of norm(x), of rows of up to kNormed elements. The weights are there before x is.
inline constexpr int kNormed = 4096;
template <int kThreads>
struct RowNorm {
  static constexpr int kLoads = kNormed / 4 / kThreads, kWarps = kThreads / 32;
  float4 weight[kLoads];

  __device__ explicit RowNorm(const Norm& p) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = j * kThreads + threadIdx.x;
      if (i < p.hidden / 4) weight[j] = __ldg(reinterpret_cast<const float4*>(p.weight) + i);
    }
  }
  // scratch: a float a warp and row
  template <class Source>
  __device__ void run(const Norm& p, float* scratch, uint8_t* rows, int row_bytes, int first, int end) const {
    for (int row = 0; row < p.rows; ++row, scratch += kWarps) {
      const int from = p.row_map != nullptr ? p.row_map[row] : row;
      const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(from) * p.hidden);
      float4 v[kLoads];
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int i = j * kThreads + threadIdx.x;
        v[j] = i < p.hidden / 4 ? x[i] : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
        squares =
            fmaf(v[j].x, v[j].x, fmaf(v[j].y, v[j].y, fmaf(v[j].z, v[j].z, fmaf(v[j].w, v[j].w, squares))));
      squares = warp_sum(squares);
      if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = squares;
      sync_multipliers<kThreads>();
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += scratch[w];
      const float mean = sum / static_cast<float>(p.hidden);
      if (!(mean <= 3.0e38f) && threadIdx.x == 0 && blockIdx.x == 0) atomicCAS(p.fault, 0, p.code);
      const float scale = rsqrtf(mean + p.eps);
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int i = j * kThreads + threadIdx.x;
        if (4 * i < first || 4 * i >= end) continue;
        const float4 a = v[j], w = weight[j];
        put_four<Source>(rows + row * row_bytes, 4 * i - first,
                         {a.x * scale * w.x, a.y * scale * w.y, a.z * scale * w.z, a.w * scale * w.w},
                         p.factor);
      }
    }
  }
};

}  // namespace moesaic::cuda::sm90a
