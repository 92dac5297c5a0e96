// The consumer warps of the decode MoE operator: activations, dequantisation in registers, mma.sync.
#pragma once
#include "backend/cuda/sm90a/moe_decode_parts.cuh"

namespace moesaic::cuda::sm90a {

// ---- consumers ----
// Each consumer reads only its own slice of an activation row and fetches it itself: nothing to synchronise.
__device__ __forceinline__ uint8_t* slice(uint8_t* row, int warp) { return row + warp * kSlice; }
__device__ __forceinline__ const uint8_t* slice(const half* row, int warp) {
  return reinterpret_cast<const uint8_t*>(row) + warp * kSlice;
}
constexpr int kSliceLanes = kSlice / 16;  // 24

template <class C>
__device__ __forceinline__ void request_rows(Shared<C>& s, const half* rows, int n, int slot, int warp) {
  const int lane = threadIdx.x & 31;
  if (lane < kSliceLanes) {
    uint8_t* to = slice(s.act[slot], warp) + lane * 16;
    const uint8_t* from = slice(rows, warp) + lane * 16;
#pragma unroll 1
    for (int r = 0; r < n; ++r, to += kRowStride, from += kHidden * 2) copy_async(to, from);
  }
}
__device__ __forceinline__ bool has_empty(uint4 v) {
  return v.x == kEmpty || v.y == kEmpty || v.z == kEmpty || v.w == kEmpty;
}
// Waits until rows of h that have been copied are complete, reading again what was not yet written.
template <class C>
__device__ __forceinline__ void settle_rows(Shared<C>& s, const half* rows, int n, int slot, int warp) {
  const int lane = threadIdx.x & 31;
  if (lane < kSliceLanes) {
    uint8_t* to = slice(s.act[slot], warp) + lane * 16;
    const uint8_t* from = slice(rows, warp) + lane * 16;
#pragma unroll 1
    for (int r = 0; r < n; ++r, to += kRowStride, from += kHidden * 2) {
      uint4 v = *reinterpret_cast<const uint4*>(to);
      if (!has_empty(v)) continue;
      do v = load_relaxed(from);
      while (has_empty(v));
      *reinterpret_cast<uint4*>(to) = v;
    }
  }
  __syncwarp();
}

// B operands of the 6 blocks for this lane's column; zero where the column belongs to another block of the
// group.
template <int G>
__device__ __forceinline__ void load_b(uint4 (&b)[6], const uint8_t* row, const uint4* zero, int offset,
                                       bool valid) {
#pragma unroll
  for (int j = 0; j < 6; ++j)
    b[j] = *(valid && j % G == offset ? reinterpret_cast<const uint4*>(row + j * 64) : zero);
}

// Products of 16 rows x 6 blocks. Sums of each token: ((p0 + p1) + p2), p_q = d[2q] s[2q] + d[2q+1] s[2q+1],
// whatever G, so that a token's result does not depend on the batch it is in.
template <int G>
__device__ __forceinline__ void compute(const uint8_t* at, const uint4 (&b)[6], int columns, float* red) {
  constexpr int kGroups = G == 6 ? 2 : 6 / G;  // G = 6: even and odd blocks in two chains
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const uint4 u0 = *reinterpret_cast<const uint4*>(at + lane * 16);
  const uint4 v0 = *reinterpret_cast<const uint4*>(at + lane * 16 + kSlabThird);
  const uint2 u1 = *reinterpret_cast<const uint2*>(at + lane * 8 + kWarpTail);
  const uint2 v1 = *reinterpret_cast<const uint2*>(at + lane * 8 + kWarpTail + kSlabThird);
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(at + kWarpScales + g * 6);
  const int q6 = t < 3 ? t : 2;
  uint32_t sa[3], sb[3];
#pragma unroll
  for (int q = 0; q < (G == 6 ? 1 : 3); ++q) {
    sa[q] = scales[G == 6 ? q6 : q];
    sb[q] = scales[kSlabThird / 2 + (G == 6 ? q6 : q)];
  }
  const uint32_t wa[6] = {u0.x, u0.y, u0.z, u0.w, u1.x, u1.y};
  const uint32_t wb[6] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y};
  float d[kGroups][4] = {};
#pragma unroll
  for (int j = 0; j < 6; ++j) {
    uint32_t a0[4], a1[4];
    decode(wa[j], a0);
    decode(wb[j], a1);
    float(&acc)[4] = d[G == 6 ? j & 1 : j / G];
    mma<false>(acc, a0[0], a1[0], a0[1], a1[1], b[j].x, b[j].y);
    mma<false>(acc, a0[2], a1[2], a0[3], a1[3], b[j].z, b[j].w);
  }
  if (G == 6) {
    const float lo = fmaf(d[1][1], scale_high(sa[0]), d[0][0] * scale_low(sa[0]));
    const float hi = fmaf(d[1][3], scale_high(sb[0]), d[0][2] * scale_low(sb[0]));
    const bool odd = t & 1;
    float sum = (odd ? hi : lo) + __shfl_xor_sync(~0u, odd ? lo : hi, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t < 2) red[g + 8 * t] = sum;
  } else if (G == 2) {
    float lo[3], hi[3];
#pragma unroll
    for (int q = 0; q < 3; ++q) {
      lo[q] = fmaf(d[q % kGroups][1], scale_high(sa[q]), d[q % kGroups][0] * scale_low(sa[q]));
      hi[q] = fmaf(d[q % kGroups][3], scale_high(sb[q]), d[q % kGroups][2] * scale_low(sb[q]));
    }
    if (t < columns) {
      red[t * 16 + g] = (lo[0] + lo[1]) + lo[2];
      red[t * 16 + g + 8] = (hi[0] + hi[1]) + hi[2];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v[3];
#pragma unroll
      for (int q = 0; q < 3; ++q) {
        const uint32_t x = i < 2 ? sa[q] : sb[q];
        v[q] = fmaf(d[(2 * q + 1) % kGroups][i], scale_high(x), d[2 * q % kGroups][i] * scale_low(x));
      }
      const int column = 2 * t + (i & 1);
      if (column < columns) red[column * 16 + g + (i >> 1) * 8] = (v[0] + v[1]) + v[2];
    }
  }
}

// One unit of the ring for this warp.
template <class C, int G>
__device__ __forceinline__ void consume_unit(Shared<C>& s, const uint4 (&b)[6], int warp, int columns,
                                             RingPlace<C::kStages>& slot) {
  const int third = warp / kWarpsPerThird, at = third * kUnitThird + warp % kWarpsPerThird * kWarpBytes;
  Stage<C>& stage = s.stages[slot.index];
  mbar_wait(&stage.full[third], slot.phase);
  float* red = &stage.reduce[warp][0][0];
  compute<G>(stage.unit + at, b, columns, red);
  __syncwarp();
  if (arrives((threadIdx.x & 31) == 0)) mbar_arrive(&stage.done);
  slot.next();
}

// B of an item: column = lane / 4 / G.
template <class C, int G>
__device__ __forceinline__ void load_columns(Shared<C>& s, uint4 (&b)[6], int warp, int columns,
                                             uint32_t slots) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int column = G == 6 ? 0 : G == 2 ? g >> 1 : g;
  const bool valid = column < columns && (G != 6 || g < 6);
  load_b<G>(b, slice(s.act[slots >> 4 * column & 15], warp) + t * 16, &s.zero[t], G == 6 ? g : g % G, valid);
}

template <class C, int G>
__device__ __forceinline__ void consume_item(Shared<C>& s, const Item& u, int warp,
                                             RingPlace<C::kStages>& slot) {
  uint4 b[6];
  load_columns<C, G>(s, b, warp, u.columns, u.slots);
#pragma unroll 1
  for (int k = 0; k < u.units; ++k) consume_unit<C, G>(s, b, warp, u.columns, slot);
}

// x of all tokens, and the scratch of the next launch.
template <class C>
__device__ __forceinline__ void start_consumer(Shared<C>& s, const Params& p, int warp) {
  request_rows(s, p.x, p.tokens, C::kXSlot, warp);
  copy_async_commit();
  const int vector = (threadIdx.x - 64) * kGrid + blockIdx.x;
  if (vector < p.clear_vectors)
    reinterpret_cast<uint4*>(p.h_clear)[vector] = make_uint4(kEmpty, kEmpty, kEmpty, kEmpty);
  copy_async_wait<0>();
  __syncwarp();
}

template <class C>
__device__ void consume(Shared<C>& s, const Params& p, int warp) {
  start_consumer(s, p, warp);
  mbar_wait(&s.planned, 0);
  const int n = s.item_count;
  RingPlace<C::kStages> slot;
  Item next = load_item(s, 0);
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    const Item u = next;
    next = load_item(s, i + 1);
    if (u.wait_rows) {
      copy_async_wait<0>();
      settle_rows(s, p.h + (size_t)u.pair0 * kHidden, u.wait_rows, u.slots & 15, warp);
    }
    if (u.next_rows) {
      request_rows(s, p.h + (size_t)u.next_pair * kHidden, u.next_rows, u.next_slot, warp);
      copy_async_commit();
    }
    if (u.columns == 1) {
      consume_item<C, 6>(s, u, warp, slot);
    } else if (C::kTokens <= 2 || u.columns <= 4) {
      consume_item<C, 2>(s, u, warp, slot);
    } else {
      consume_item<C, 1>(s, u, warp, slot);
    }
  }
}

// One token: slots 0-3 are the experts' h, in sorted order.
template <class C>
__device__ void consume_one(Shared<C>& s, const Params& p, int warp) {
  start_consumer(s, p, warp);
  RingPlace<C::kStages> slot;
  auto request = [&](int e, int n) {
    request_rows(s, p.h + e * kHidden, n, e, warp);
    copy_async_commit();
  };
  uint4 b[6];
  load_columns<C, 6>(s, b, warp, 1, C::kXSlot);
  int units = 0;
  for (int e = 0; e < kTopK; ++e) units += fc1_units(fc1_place(e));
#pragma unroll 1
  for (int k = 0; k < units; ++k) {
    if (k == units - 3) request(0, 2);
    consume_unit<C, 6>(s, b, warp, 1, slot);
  }
  request(2, 1);
#pragma unroll 1
  for (int step = 0; step < kFc2Steps; ++step) {
    const int e = step_expert(step);
    if (is_tail(step) && !has_tail()) continue;
    if (step < 2)
      copy_async_wait<1>();  // rows 0 and 1, not yet 2
    else if (step != 3)
      copy_async_wait<0>();
    if (is_tail(step)) {
      if (step == 4) settle_rows(s, p.h + 3 * kHidden, 1, 3, warp);
      load_columns<C, 2>(s, b, warp, 2, e | (e + 1) << 4);
      consume_unit<C, 2>(s, b, warp, 2, slot);
    } else {
      if (step < 3 || !has_tail()) settle_rows(s, p.h + e * kHidden, 1, e, warp);
      if (step == 2) request(3, 1);
      load_columns<C, 6>(s, b, warp, 1, e);
      consume_unit<C, 6>(s, b, warp, 1, slot);
    }
  }
}

}  // namespace moesaic::cuda::sm90a
