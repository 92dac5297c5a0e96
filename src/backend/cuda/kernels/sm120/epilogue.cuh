// Uses of a tile's sums, which a CTA has in shared memory: SwiGLU and a new quantisation,
// rows for the next norm or the residual, or heads.
#pragma once

#include "backend/cuda/kernels/common/epilogue.cuh"
#include "backend/cuda/kernels/sm120/product.cuh"
#include "backend/cuda/kernels/sm120/quantize.cuh"

namespace moesaic::cuda::sm120 {

// ---- sums in shared memory: [slice][token][row], rows of kWeightTiles weight tiles ----

template <int kWeightTiles>
inline constexpr int kRowStride = kWeightTiles* kWeightTileRows + 1;  // floats

// A weight tile's sums of groups from `group` on.
template <int kWeightTiles, int kGroups>
__device__ inline void store(const GroupSums<kGroups>& sums, float* out, int weight_tile, int group) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int t = 0; t < kGroups; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[((group + t) * kGroup + 2 * c + i % 2) * kRowStride<kWeightTiles> +
            weight_tile * kWeightTileRows + 16 * m + i / 2 * 8 + g] = sums.v[m][t][i];
    }
  }
}

struct TileSums {
  const float* sums;  // the first slice
  int slice_stride;   // floats
  WorkTile work_tile;
  int first_weight_tile, weight_tiles;  // those that exist: the matrix may end within the tile
  int parts;
};
// The group of a token's part.
__device__ inline int group_of(int token, int part, int parts) { return token / kGroup * parts + part; }
// The slices' sum of one row and a token's part.
template <int kWeightTiles, int kTileSlices>
__device__ inline float total(const TileSums& t, int token, int part, int row) {
  const int column = group_of(token, part, t.parts) * kGroup + token % kGroup;
  const float* at = t.sums + column * kRowStride<kWeightTiles> + row;
  float sum = at[0];
#pragma unroll
  for (int s = 1; s < kTileSlices; ++s) sum += at[s * t.slice_stride];
  return sum;
}
// The sum of all parts.
template <int kWeightTiles, int kTileSlices>
__device__ inline float total(const TileSums& t, int token, int row) {
  float sum = total<kWeightTiles, kTileSlices>(t, token, 0, row);
  for (int part = 1; part < t.parts; ++part) sum += total<kWeightTiles, kTileSlices>(t, token, part, row);
  return sum;
}

// ---- epilogues, by all threads of a CTA ----

// Two weight tiles are 32 values of SwiGLU, a block of the second product's contraction: 16 lanes make it,
// each a value of either weight tile.

// This lane's value of the pair's weight tile u.
template <int kWeightTiles, int kTileSlices>
__device__ inline float swiglu_of(const SwiGluMx& e, const TileSums& t, int token, int pair, int u) {
  const int lane = threadIdx.x % 16, row = (2 * pair + u) * kWeightTileRows + lane / 8 * 16 + lane % 8;
  const int64_t at = static_cast<int64_t>(t.work_tile.expert) * e.intermediate +
                     (t.first_weight_tile / 2 + pair) * kBlock + 16 * u + lane;
  return swiglu(total<kWeightTiles, kTileSlices>(t, token, row) + e.gate_bias[at],
                total<kWeightTiles, kTileSlices>(t, token, row + 8) + e.up_bias[at], e.alpha, e.limit,
                e.offset);
}

// The block of a token's part, quantised; v becomes the error of the rounding, which is the next part's
// value. real: there is such a token.
__device__ inline void put_block(const SwiGluMx& e, float (&v)[2], int g, int group, int block, bool real) {
  const int lane = threadIdx.x % 16;
  uint32_t largest = max(magnitude_bits(v[0]), magnitude_bits(v[1]));
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2)
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset, 16));
  const uint32_t scale = e8m0_of(largest);
  const float inverse = inverse_of(scale);
  // The codes of four lanes to one word of each weight tile.
  constexpr int kWordLanes = 4;
  uint32_t codes[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const uint32_t code = code_of(v[u], inverse);
    v[u] -= value_of(code, scale);
    codes[u] = code << 8 * (lane % kWordLanes);
#pragma unroll
    for (int offset = 1; offset < kWordLanes; offset *= 2)
      codes[u] |= __shfl_xor_sync(0xFFFFFFFFu, codes[u], offset, 16);
  }
  if (!real) return;
  uint8_t* to = e.out + group * group_bytes(e.intermediate / kBlock);
  const int u = lane % kWordLanes, column = 16 * u + lane / kWordLanes * kWordLanes;
  if (u < 2)
    *reinterpret_cast<uint32_t*>(to + token_bytes_at(g, block, column / 8) + column % 8) =
        u == 0 ? codes[0] : codes[1];
  if (lane == 0) to[token_scale_at(g, block)] = static_cast<uint8_t>(scale);
}

template <int kWeightTiles, int kTileSlices>
__device__ inline void finish(const SwiGluMx& e, const TileSums& t) {
  const int sixteens = static_cast<int>(blockDim.x) / 16;
  const int pairs = kWeightTiles == 2 ? 1 : t.weight_tiles / 2, values = t.work_tile.count * pairs;
  // Lanes beyond the tokens keep the shuffles whole.
  for (int i = threadIdx.x / 16; i < (values + sixteens - 1) / sixteens * sixteens; i += sixteens) {
    const int token = min(i / pairs, t.work_tile.count - 1), pair = i % pairs;
    float v[2] = {swiglu_of<kWeightTiles, kTileSlices>(e, t, token, pair, 0),
                  swiglu_of<kWeightTiles, kTileSlices>(e, t, token, pair, 1)};
    const int place = t.work_tile.start + token;
    for (int part = 0; part < t.parts; ++part)
      put_block(e, v, place % kGroup, group_of(place, part, t.parts), t.first_weight_tile / 2 + pair,
                i < values);
  }
}

// put(token, row of the matrix, value) for all of the tile.
template <int kWeightTiles, int kTileSlices, class Put>
__device__ inline void for_rows(const TileSums& t, const Put& put) {
  const int rows = t.weight_tiles * kWeightTileRows;
  for (int i = threadIdx.x; i < t.work_tile.count * rows; i += blockDim.x)
    put(i / rows, t.first_weight_tile * kWeightTileRows + i % rows,
        total<kWeightTiles, kTileSlices>(t, i / rows, i % rows));
}
template <int kWeightTiles, int kTileSlices>
__device__ inline void finish(const Store& e, const TileSums& t) {
  const float* bias =
      e.bias != nullptr ? e.bias + static_cast<int64_t>(t.work_tile.expert) * e.rows : nullptr;
  for_rows<kWeightTiles, kTileSlices>(t, [&](int token, int row, float v) {
    if (row >= e.rows) return;
    float* to = e.out + (t.work_tile.first + token) * e.stride + row;
    if (bias != nullptr) v += bias[row];
    *to = e.add ? *to + v : v;
  });
}
// A thread joins the halves of a head, as everywhere.
template <int kWeightTiles, int kTileSlices>
__device__ inline void finish(const Qkv& e, const TileSums& t) {
  constexpr int kPairs = kWeightTileRows / 2;
  const int pairs = t.weight_tiles * kPairs;
  for (int i = threadIdx.x; i < t.work_tile.count * pairs; i += blockDim.x) {
    const int token = i / pairs, weight_tile = i % pairs / kPairs, pair = i % kPairs;
    const int row = weight_tile * kWeightTileRows + pair / 8 * 16 + pair % 8;
    cuda::finish(e, t.first_weight_tile + weight_tile, pair, t.work_tile.first + token, 0,
                 total<kWeightTiles, kTileSlices>(t, token, row),
                 total<kWeightTiles, kTileSlices>(t, token, row + 8));
  }
}

}  // namespace moesaic::cuda::sm120
