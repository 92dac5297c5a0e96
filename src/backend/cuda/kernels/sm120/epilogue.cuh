// What becomes of a tile's sums, which a thread block has in shared memory: SwiGLU and a new quantisation,
// rows for the next norm or the residual, heads, or the baseline's atomics.
#pragma once

#include "backend/cuda/kernels/common/epilogue.cuh"
#include "backend/cuda/kernels/sm120/product.cuh"
#include "backend/cuda/kernels/sm120/quantize.cuh"

namespace moesaic::cuda::sm120a {

// ---- sums in shared memory: [slice][token][row], rows of kUnits units ----

template <int kUnits>
inline constexpr int kRowStride = kUnits* kUnit + 1;  // floats

// A unit's sums of groups from `group` on.
template <int kUnits, int kGroups>
__device__ inline void store(const Sums<kGroups>& sums, float* out, int unit, int group) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int t = 0; t < kGroups; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[((group + t) * kGroup + 2 * c + i % 2) * kRowStride<kUnits> + unit * kUnit + 16 * m + i / 2 * 8 +
            g] = sums.v[m][t][i];
    }
  }
}

struct Tiles {
  const float* sums;  // the first slice
  int slice_stride;   // floats
  Job job;
  int first_unit, units;  // that exist: the matrix may end within the tile
};
// The slices' sum of one row and token.
template <int kUnits, int kTileSlices>
__device__ inline float total(const Tiles& t, int token, int row) {
  const float* at = t.sums + token * kRowStride<kUnits> + row;
  float sum = at[0];
#pragma unroll
  for (int s = 1; s < kTileSlices; ++s) sum += at[s * t.slice_stride];
  return sum;
}

// ---- epilogues, by all threads of a block; kB: the kernel's tokens ----

// Two units are 32 values of SwiGLU, a block of the second product's contraction: 16 lanes make it, each a
// value of either unit.

// This lane's value of the pair's unit u.
template <int kUnits, int kTileSlices>
__device__ inline float value_of(const SwiGluMx& e, const Tiles& t, int token, int pair, int u) {
  const int lane = threadIdx.x % 16, row = (2 * pair + u) * kUnit + lane / 8 * 16 + lane % 8;
  const int64_t at = static_cast<int64_t>(t.job.expert) * e.intermediate +
                     (t.first_unit / 2 + pair) * kBlock + 16 * u + lane;
  return swiglu(total<kUnits, kTileSlices>(t, token, row) + e.gate_bias[at],
                total<kUnits, kTileSlices>(t, token, row + 8) + e.up_bias[at], e.alpha, e.limit);
}

// The block of a token, quantised as the kernel's own tokens are; real: there is such a token.
template <Element kB>
__device__ inline void put_block(const SwiGluMx& e, const float (&v)[2], int place, int block, bool real) {
  const int lane = threadIdx.x % 16, g = place % kGroup;
  uint32_t largest = max(magnitude_bits(v[0]), magnitude_bits(v[1]));
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2)
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset, 16));
  const uint32_t scale = e8m0_of<kB>(largest);
  const float inverse = inverse_of(scale);
  // The codes of four lanes, or of eight, to one word of each unit.
  constexpr int kWordLanes = kB == Element::kE2M1 ? 8 : 4;
  uint32_t codes[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    codes[u] = code_of<kB>(v[u], inverse) << token_bit(kB, lane) % 32;
#pragma unroll
    for (int offset = 1; offset < kWordLanes; offset *= 2)
      codes[u] |= __shfl_xor_sync(0xFFFFFFFFu, codes[u], offset, 16);
  }
  if (!real) return;
  const int blocks = e.intermediate / kBlock;
  uint8_t* to = e.out + place / kGroup * group_bytes(kB, blocks);
  const auto put = [&](int at, uint32_t word, uint32_t s) {
    const int u = lane % kWordLanes, column = 16 * u + lane / kWordLanes * kWordLanes;
    if (u < 2) *reinterpret_cast<uint32_t*>(to + token_bytes_at(kB, g, at, column / 8) + column % 8) = word;
    if (lane == 0) to[token_scale_at(kB, g, at)] = static_cast<uint8_t>(s);
  };
  put(block, lane % kWordLanes == 0 ? codes[0] : codes[1], scale);
  if (block + 1 == blocks && blocks % kStepBlocks<kB> != 0) put(blocks, 0, 0);
}

template <Element kB, int kUnits, int kTileSlices>
__device__ inline void finish(const SwiGluMx& e, const Tiles& t) {
  const int lane = threadIdx.x % 16, sixteens = static_cast<int>(blockDim.x) / 16;
  const int pairs = kUnits == 2 ? 1 : t.units / 2, values = t.job.count * pairs;
  // Lanes beyond the tokens keep the shuffles whole.
  for (int i = threadIdx.x / 16; i < (values + sixteens - 1) / sixteens * sixteens; i += sixteens) {
    const bool real = i < values;
    const int token = min(i / pairs, t.job.count - 1), pair = i % pairs, block = t.first_unit / 2 + pair;
    const float v[2] = {value_of<kUnits, kTileSlices>(e, t, token, pair, 0),
                        value_of<kUnits, kTileSlices>(e, t, token, pair, 1)};
    if (e.bf16 == nullptr) {
      put_block<kB>(e, v, t.job.start + token, block, real);
    } else if (real) {
      __nv_bfloat16* to =
          e.bf16 + static_cast<int64_t>(t.job.first + token) * e.intermediate + block * kBlock + lane;
      to[0] = __float2bfloat16_rn(v[0]), to[16] = __float2bfloat16_rn(v[1]);
    }
  }
}

// put(token, row of the matrix, value) for all of the tile.
template <int kUnits, int kTileSlices, class Put>
__device__ inline void for_rows(const Tiles& t, const Put& put) {
  const int rows = t.units * kUnit;
  for (int i = threadIdx.x; i < t.job.count * rows; i += blockDim.x)
    put(i / rows, t.first_unit * kUnit + i % rows, total<kUnits, kTileSlices>(t, i / rows, i % rows));
}
template <Element kB, int kUnits, int kTileSlices>
__device__ inline void finish(const Store& e, const Tiles& t) {
  const float* bias = e.bias != nullptr ? e.bias + static_cast<int64_t>(t.job.expert) * e.rows : nullptr;
  for_rows<kUnits, kTileSlices>(t, [&](int token, int row, float v) {
    if (row >= e.rows) return;
    float* to = e.out + (t.job.first + token) * e.stride + row;
    if (bias != nullptr) v += bias[row];
    *to = e.add ? *to + v : v;
  });
}
// A thread joins the halves of a head, as everywhere.
template <Element kB, int kUnits, int kTileSlices>
__device__ inline void finish(const Qkv& e, const Tiles& t) {
  constexpr int kPairs = kUnit / 2;
  const int pairs = t.units * kPairs;
  for (int i = threadIdx.x; i < t.job.count * pairs; i += blockDim.x) {
    const int token = i / pairs, unit = i % pairs / kPairs, pair = i % kPairs;
    const int row = unit * kUnit + pair / 8 * 16 + pair % 8;
    cuda::finish(e, t.first_unit + unit, pair, t.job.first + token, 0,
                 total<kUnits, kTileSlices>(t, token, row), total<kUnits, kTileSlices>(t, token, row + 8));
  }
}
template <Element kB, int kUnits, int kTileSlices>
__device__ inline void finish(const AtomicCombine& e, const Tiles& t) {
  const float* bias = e.bias + static_cast<int64_t>(t.job.expert) * e.hidden;
  for_rows<kUnits, kTileSlices>(t, [&](int token, int row, float v) {
    const int slot = t.job.first + token, to = e.slot_rows[slot];
    float weight = 0;
    for (int k = 0; k < e.top_k; ++k)
      if (e.slots[to * e.top_k + k] == slot) weight = e.weights[to * e.top_k + k];
    atomicAdd(e.out + static_cast<int64_t>(to) * e.hidden + row, weight * (v + bias[row]));
  });
}

}  // namespace moesaic::cuda::sm120a
