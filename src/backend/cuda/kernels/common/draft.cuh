// The kernels between a draft head's products. Contracts: kernels/common/draft.h.
//
// Maths    norms as norm.cuh's, of rows as wide as they come: x / rms(x) * weight
// Shapes   hidden a multiple of 32; widths of copied rows a multiple of 8
//
// Grid     a CTA a row; tap_kernel: y: 1,024 columns of it; between steps: a CTA a sequence
// CTA      kDraftThreads threads, alike, 4 or 8 columns each at a time
//
// Barriers two in each block_sum()
// Ordering Nothing is read before the wait for the predecessor, and the successor may start only then:
//          what it reads before its own wait (K and V of the kernel before this one) is there.
// Resident No CTA waits for another.
//
// Bytes    rows once for each norm and once to write, from L2 but for the first time. Shared memory:
//          a float a warp.
// Floor    latency: two or three dependent reads.
#pragma once

#include "backend/cuda/kernels/common/draft.h"
#include "backend/cuda/kernels/common/norm.cuh"
#include "backend/cuda/kernels/common/stored.cuh"

namespace moesaic::cuda {

inline constexpr int kDraftThreads = 256;
inline constexpr int kDraftWarps = kDraftThreads / 32;

extern __shared__ float draft_scratch[];  // [kDraftWarps]

__device__ inline float4 scaled(const float4& v, float by, const float* weight, int i) {
  if (weight == nullptr) return {v.x * by, v.y * by, v.z * by, v.w * by};
  const float4 w = reinterpret_cast<const float4*>(weight)[i];
  return {v.x * by * w.x, v.y * by * w.y, v.z * by * w.z, v.w * by * w.w};
}
__device__ inline float add_squares(const float4& v, float sum) {
  return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
}
// Returns the factor of a row whose squares sum up to this over the CTA's threads; NaN where it is not
// finite.
__device__ inline float inverse_rms(float squares, int columns, float eps) {
  const float mean = block_sum(squares, draft_scratch) / static_cast<float>(columns);
  return mean <= 3.0e38f ? rsqrtf(mean + eps) : NAN;
}

__global__ void __launch_bounds__(kDraftThreads) tap_kernel(const Tap p) {
  wait_for_predecessor();
  launch_dependents();
  const int row = blockIdx.x, i = blockIdx.y * kDraftThreads + threadIdx.x, quads = p.hidden / 4;
  if (i >= quads) return;
  const auto at = [&](const float* rows, int64_t r) {
    return reinterpret_cast<const float4*>(rows)[r * quads + i];
  };
  float4 sum = at(p.x, row);
  for (int k = 0; p.deferred.expert_out != nullptr && k < p.deferred.top_k; ++k) {
    const float4 y = at(p.deferred.expert_out, p.deferred.permuted_rows[row * p.deferred.top_k + k]);
    const float weight = p.deferred.weights[row * p.deferred.top_k + k];
    sum = {fmaf(weight, y.x, sum.x), fmaf(weight, y.y, sum.y), fmaf(weight, y.z, sum.z),
           fmaf(weight, y.w, sum.w)};
  }
  reinterpret_cast<float4*>(p.out + row * p.stride)[i] = sum;
}

__global__ void __launch_bounds__(kDraftThreads) fuse_taps_kernel(const FuseTaps p) {
  wait_for_predecessor();
  launch_dependents();
  const int quads = p.hidden / 4, all = p.count * quads;
  const int64_t row = blockIdx.x;
  const auto* from = reinterpret_cast<const float4*>(p.taps) + static_cast<int64_t>(p.sources[row]) * all;
  float scale = 1;
  if (p.input_norm != nullptr) {
    float squares = 0;
    for (int i = threadIdx.x; i < all; i += kDraftThreads) squares = add_squares(from[i], squares);
    scale = inverse_rms(squares, 4 * all, p.eps);
  }
  for (int first = 0; first < all; first += quads) {
    float own = 1;
    if (p.fc_norms != nullptr) {
      float squares = 0;
      for (int i = first + threadIdx.x; i < first + quads; i += kDraftThreads)
        squares = add_squares(scaled(from[i], scale, p.input_norm, i), squares);
      own = inverse_rms(squares, p.hidden, p.eps);
    }
    for (int i = first + threadIdx.x; i < first + quads; i += kDraftThreads)
      static_cast<uint2*>(p.out)[row * all + i] =
          half_words(scaled(scaled(from[i], scale, p.input_norm, i), own, p.fc_norms, i), p.factor, p.bf16);
  }
}

// Eight columns of a row.
struct Columns {
  float4 low, high;
  __device__ static Columns of(const float* row, int unit) {
    const auto* at = reinterpret_cast<const float4*>(row) + 2 * unit;
    return {at[0], at[1]};
  }
  __device__ static Columns of(const Raw& table, int token, int unit) {
    float v[8];
    read8(table, token, unit / 4, unit % 4, v);
    return {{v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]}};
  }
  __device__ float add_squares_to(float sum) const { return add_squares(high, add_squares(low, sum)); }
  __device__ Columns times(float by, const float* weight, int unit) const {
    return {scaled(low, by, weight, 2 * unit), scaled(high, by, weight, 2 * unit + 1)};
  }
  __device__ void store(float* row, int unit) const {
    auto* at = reinterpret_cast<float4*>(row) + 2 * unit;
    at[0] = low, at[1] = high;
  }
};

__global__ void __launch_bounds__(kDraftThreads) join_inputs_kernel(const JoinInputs p) {
  wait_for_predecessor();
  launch_dependents();
  const int units = p.hidden / 8, token = p.tokens[blockIdx.x], place = p.places[blockIdx.x];
  const float* features = p.features + static_cast<int64_t>(blockIdx.x) * p.hidden;
  float squares[2] = {};
  for (int i = threadIdx.x; i < units; i += kDraftThreads) {
    squares[0] = Columns::of(p.embed, token, i).add_squares_to(squares[0]);
    squares[1] = Columns::of(features, i).add_squares_to(squares[1]);
  }
  const float embed_scale = inverse_rms(squares[0], p.hidden, p.eps),
              scale = inverse_rms(squares[1], p.hidden, p.eps);
  const bool finite = isfinite(embed_scale) && isfinite(scale);
  auto* out = static_cast<uint2*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.hidden / 2;
  const auto write = [&](const Columns& v, int unit) {
    const uint2 none = {0, 0};
    out[2 * unit] = finite ? half_words(v.low, p.factor, p.bf16) : none;
    out[2 * unit + 1] = finite ? half_words(v.high, p.factor, p.bf16) : none;
  };
  for (int i = threadIdx.x; i < units; i += kDraftThreads) {
    const Columns own = Columns::of(features, i), normed = own.times(scale, p.hidden_norm, i);
    write(Columns::of(p.embed, token, i).times(embed_scale, p.embed_norm, i), i);
    write(normed, units + i);
    if (place < 0) continue;
    const Columns kept = p.normed_residual ? normed : own, lost = own.times(NAN, nullptr, i);
    (finite ? kept : lost).store(p.residual + static_cast<int64_t>(place) * p.hidden, i);
  }
}

__global__ void __launch_bounds__(kDraftThreads) place_rows_kernel(const PlaceRows p) {
  wait_for_predecessor();
  launch_dependents();
  const int place = p.places[blockIdx.x], units = p.width / 8;
  if (place < 0) return;
  const auto* from = static_cast<const uint4*>(p.from) + static_cast<int64_t>(blockIdx.x) * units;
  auto* to = static_cast<uint4*>(p.to) + static_cast<int64_t>(place) * units;
  for (int i = threadIdx.x; i < units; i += kDraftThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kDraftThreads) next_round_kernel(const NextRound p) {
  wait_for_predecessor();
  launch_dependents();
  const int64_t row = blockIdx.x, source = p.kept[row];
  const int quads = p.hidden / 4;
  const auto* from = reinterpret_cast<const float4*>(p.from) + source * quads;
  auto* to = reinterpret_cast<float4*>(p.features) + row * quads;
  for (int i = threadIdx.x; i < quads; i += kDraftThreads) to[i] = from[i];
  if (threadIdx.x > 0) return;
  const int chosen = max(p.chosen[source], 0);
  p.tokens[row] = p.ids != nullptr ? p.ids[chosen] : chosen;
}

// ---- between steps: a CTA a sequence, of a few rows ----

inline constexpr int kMoveThreads = 32;

__device__ inline int32_t slot_of(const int32_t* table, int position) {
  return table[position / kPageTokens] * kPageTokens + position % kPageTokens;
}
__device__ inline void copy_sampling(int32_t* inputs, int to, int from, int index) {
  for (int i = 0; i < kSamplingInts; ++i) inputs[to + i] = inputs[from + index * kSamplingInts + i];
}

__global__ void __launch_bounds__(kMoveThreads) hold_rows_kernel(const HoldRows p) {
  int32_t* const in = p.inputs;
  const auto& s = reinterpret_cast<const BegunSequence*>(in + p.sequences)[blockIdx.x];
  const int sure = s.rows - s.wanted;  // rows whose next token the host knows
  const int32_t* const sampled = p.sampled + s.first_wanted;
  int accepted = 0;  // found by every thread
  while (accepted + 1 < s.wanted && p.tokens[s.step_row + sure + accepted + 1] == sampled[accepted])
    ++accepted;
  const int position = p.positions[s.step_row], last = position + sure + accepted;
  const int32_t* const table = in + p.pages + s.table;
  for (int i = threadIdx.x; i < s.rows; i += kMoveThreads) {
    const int row = s.row + i;
    if (i >= sure) in[p.tokens_in + row] = max(sampled[i - sure], 0);
    in[p.places + row] = s.drafts > 0 && i == sure + accepted ? s.places[0] : -1;
    in[p.rounds[0].positions + row] = position + i;
    in[p.rounds[0].slots + row] = slot_of(table, position + i);
  }
  const int moved = accepted + (p.moved != nullptr ? p.moved[s.sequence] : 0);
  for (int i = threadIdx.x; i < s.drafts; i += kMoveThreads) {
    const HoldRows::Round& round = p.rounds[i];
    const int place = s.places[i];
    if (i > 0) {
      in[round.positions + place] = last + i;
      in[round.slots + place] = slot_of(table, last + i);
    }
    auto* const tile = reinterpret_cast<RowTile*>(in + round.tiles + place * kTileInts);
    tile->position = tile->written = last + i - s.skipped * kPageTokens;
    if (s.sampling >= 0) copy_sampling(in, round.sampling + place * kSamplingInts, s.sampling, moved + i);
  }
  if (threadIdx.x == 0) p.accepted[s.sequence] = accepted;
}

__global__ void __launch_bounds__(kMoveThreads) keep_drafts_kernel(const KeepDrafts p) {
  wait_for_predecessor();
  launch_dependents();
  const auto& s = reinterpret_cast<const BegunSequence*>(p.inputs + p.sequences)[blockIdx.x];
  for (int i = threadIdx.x; i < s.drafts; i += kMoveThreads) {
    const int32_t chosen = p.chosen[i * p.stride + s.places[i]];
    const int at = s.sequence * kMostDraft + i;
    p.drafts[at] = p.host_drafts[at] = chosen < 0 ? -1 : p.ids[chosen];
  }
}

__global__ void __launch_bounds__(kMoveThreads) move_on_kernel(const MoveOn p) {
  int32_t* const in = p.inputs;
  const auto& s = reinterpret_cast<const ContinuedSequence*>(in + p.sequences)[blockIdx.x];
  const int moved = p.accepted[s.source];
  const auto slot = [&](int table, int position) {
    return table < 0 ? 0 : slot_of(in + p.pages + table, position);
  };
  for (int i = threadIdx.x; i < s.rows; i += kMoveThreads) {
    const int row = s.row + i, position = in[p.positions + row] + moved;
    const int32_t token =
        i == 0 ? p.sampled[s.source_wanted + moved] : p.drafts[s.source * kMostDraft + i - 1];
    in[p.tokens + row] = max(token, 0);
    in[p.positions + row] = position;
    in[p.full_slots + row] = slot(s.full_table, position);
    in[p.window_slots + row] = slot(s.window_table, position);
    copy_sampling(in, p.sampling + (s.first_wanted + i) * kSamplingInts, s.sampling, moved + i);
  }
  for (int i = threadIdx.x; i < s.tile_count; i += kMoveThreads) {
    auto& tile = reinterpret_cast<RowTile*>(in + s.tiles)[i];
    tile.position += moved, tile.written += moved;
  }
  if (threadIdx.x == 0) in[p.moved + s.sequence] = moved;
}

}  // namespace moesaic::cuda
