// What the kernels for few and for many tokens share: a quad of a unit times a quad of tokens, and what
// becomes of the sums.
#pragma once

#include "backend/cuda/kernels.cuh"
#include "backend/cuda/sm120a/atom.cuh"
#include "backend/cuda/sm120a/copy.cuh"
#include "backend/cuda/sm120a/gemm.h"
#include "backend/cuda/sm120a/quantize.cuh"

namespace moesaic::cuda::sm120a {

// Shared memory of a multiprocessor of SM120 and SM121; what of it a thread block takes besides its dynamic
// one: the system's part and the barriers.
inline constexpr size_t kSmShared = 100 * 1024, kBlockShared = 1024 + 128;

__host__ __device__ inline int slice_start(int quads, int slice) { return quads * slice / kSlices; }

struct Product {
  const uint8_t* weights;
  int units, blocks;
  const uint8_t* tokens;
  const Job* jobs;
  const int* job_count;
  bool whole;  // groups without tokens are computed too
  __device__ const uint8_t* unit(int expert, int unit) const {
    return weights + (static_cast<int64_t>(expert) * units + unit) * unit_bytes(blocks);
  }
  __device__ const uint8_t* group(const Job& job, int group) const {
    return tokens + (job.start / kGroup + group) * group_bytes(blocks);
  }
};

// The thread block's job; none: count is 0. It may be read, and weights for it, before the predecessor has
// ended: that is expand() or a kernel behind it, which lets a successor start only once the list's maker has
// ended.
__device__ inline Job job_of(const Product& p) {
  if (static_cast<int>(blockIdx.y) >= __ldcg(p.job_count)) return {};
  const int4 job = __ldcg(reinterpret_cast<const int4*>(p.jobs) + blockIdx.y);
  return {job.x, job.y, job.z, job.w};
}

// A unit's quad in a warp's registers.
struct UnitQuad {
  uint4 block[kQuad];  // what lies beyond the last block is not used
  uint32_t scales;
  // from: shared memory
  __device__ explicit UnitQuad(const uint8_t* from) {
    const int lane = threadIdx.x % 32;
    scales = reinterpret_cast<const uint32_t*>(from)[lane];
#pragma unroll
    for (int b = 0; b < kQuad; ++b)
      block[b] = reinterpret_cast<const uint4*>(from + kUnitScaleBytes + b * kBlockBytes)[lane];
  }
};

// Sums of a unit and kGroups groups: [tile m][group], as the atom leaves them.
template <int kGroups>
struct Sums {
  float v[2][kGroups][4] = {};
};

template <int kStep, int kColumn, int kGroups>
__device__ inline void multiply_groups(Sums<kGroups>& sums, const FragmentA (&a)[2],
                                       const uint4 (&x)[kGroups], const RowScales& rows,
                                       const ColumnScales<kGroups>& columns) {
  const uint32_t b0 = kStep % 2 == 0 ? x[kColumn].x : x[kColumn].z;
  const uint32_t b1 = kStep % 2 == 0 ? x[kColumn].y : x[kColumn].w;
  mma<kStep, 0, kColumn>(sums.v[0][kColumn], a[0], b0, b1, rows, columns);
  mma<kStep, 1, kColumn>(sums.v[1][kColumn], a[1], b0, b1, rows, columns);
  if constexpr (kColumn + 1 < kGroups) multiply_groups<kStep, kColumn + 1>(sums, a, x, rows, columns);
}

// Block kStep and those behind it; tokens(t, pair): the lane's 16 bytes of group t.
template <int kStep, int kGroups, class Load>
__device__ inline void multiply_steps(Sums<kGroups>& sums, const UnitQuad& w, uint4 (&x)[kGroups],
                                      const Load& tokens, const RowScales& rows,
                                      const ColumnScales<kGroups>& columns, int blocks) {
  if (kStep >= blocks) return;
  if constexpr (kStep % 2 == 0) {
#pragma unroll
    for (int t = 0; t < kGroups; ++t) x[t] = tokens(t, kStep / 2);
  }
  const uint4 q = w.block[kStep];
  const FragmentA a[2] = {fragment(q.x, q.y), fragment(q.z, q.w)};
  multiply_groups<kStep, 0>(sums, a, x, rows, columns);
  if constexpr (kStep + 1 < kQuad) multiply_steps<kStep + 1>(sums, w, x, tokens, rows, columns, blocks);
}

// sums += quad of the unit times quad of the tokens, the first `blocks` blocks of it.
template <int kGroups, class Load>
__device__ inline void multiply(Sums<kGroups>& sums, const UnitQuad& w, const Load& tokens,
                                const ColumnScales<kGroups>& columns, int blocks) {
  const RowScales rows(w.scales);
  uint4 x[kGroups];
  multiply_steps<0>(sums, w, x, tokens, rows, columns, blocks);
}

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

// ---- epilogues, by all threads of a block ----

// Two units are 32 values of SwiGLU, a block of the second product's contraction: 16 lanes make it, each a
// value of either unit.
template <int kUnits, int kTileSlices>
__device__ inline void finish(const SwiGluMx& e, const Tiles& t) {
  const int lane = threadIdx.x % 16, threads = static_cast<int>(blockDim.x) / 16;
  const int pairs = kUnits == 2 ? 1 : t.units / 2, values = t.job.count * pairs;
  // Lanes beyond the tokens keep the shuffles whole.
  for (int i = threadIdx.x / 16; i < (values + threads - 1) / threads * threads; i += threads) {
    const int token = min(i / pairs, t.job.count - 1), pair = i % pairs;
    const int block = t.first_unit / 2 + pair;
    float v[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int row = (2 * pair + u) * kUnit + lane / 8 * 16 + lane % 8;
      const int64_t at = static_cast<int64_t>(t.job.expert) * e.intermediate + block * kBlock + 16 * u + lane;
      const float gate = fminf(total<kUnits, kTileSlices>(t, token, row) + e.gate_bias[at], e.limit);
      const float up =
          fminf(fmaxf(total<kUnits, kTileSlices>(t, token, row + 8) + e.up_bias[at], -e.limit), e.limit);
      v[u] = gate / (1.0f + __expf(-e.alpha * gate)) * (up + 1.0f);
    }
    const bool real = i < values;
    if (e.bf16 != nullptr) {
      __nv_bfloat16* to =
          e.bf16 + static_cast<int64_t>(t.job.first + token) * e.intermediate + block * kBlock;
      if (real) to[lane] = __float2bfloat16_rn(v[0]), to[16 + lane] = __float2bfloat16_rn(v[1]);
      continue;
    }
    uint32_t largest = max(magnitude_bits(v[0]), magnitude_bits(v[1]));
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2)
      largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset, 16));
    const uint32_t scale = e8m0_of(largest);
    const float inverse = inverse_of(scale);
    // Four lanes' bytes to one word each of them.
    uint32_t codes[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      codes[u] = e4m3_of(v[u], inverse) << (8 * (lane % 4));
      codes[u] |= __shfl_xor_sync(0xFFFFFFFFu, codes[u], 1, 16);
      codes[u] |= __shfl_xor_sync(0xFFFFFFFFu, codes[u], 2, 16);
    }
    const int place = t.job.start + token, g = place % kGroup;
    uint8_t* to = e.out + place / kGroup * group_bytes(e.intermediate / kBlock);
    if (real && lane % 4 < 2) {
      const int u = lane % 4, column = 16 * u + lane / 4 * 4;
      *reinterpret_cast<uint32_t*>(to + token_bytes_at(g, block, column / 8) + column % 8) =
          u == 0 ? codes[0] : codes[1];
    }
    if (real && lane == 0) to[token_scale_at(g, block)] = static_cast<uint8_t>(scale);
  }
}

// put(token, row of the matrix, value) for all of the tile.
template <int kUnits, int kTileSlices, class Put>
__device__ inline void for_rows(const Tiles& t, const Put& put) {
  const int rows = t.units * kUnit;
  for (int i = threadIdx.x; i < t.job.count * rows; i += blockDim.x)
    put(i / rows, t.first_unit * kUnit + i % rows, total<kUnits, kTileSlices>(t, i / rows, i % rows));
}
template <int kUnits, int kTileSlices>
__device__ inline void finish(const Store& e, const Tiles& t) {
  const float* bias = e.bias + static_cast<int64_t>(t.job.expert) * e.rows;
  for_rows<kUnits, kTileSlices>(
      t, [&](int token, int row, float v) { e.out[(t.job.first + token) * e.stride + row] = v + bias[row]; });
}
template <int kUnits, int kTileSlices>
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
