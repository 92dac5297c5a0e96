// The consumer warps of the decode MoE operator: activations, dequantisation in registers, mma.sync.
#pragma once
#include "backend/cuda/kernels/common/patience.cuh"
#include "backend/cuda/kernels/sm90/moe_decode_parts.cuh"

namespace moesaic::cuda::sm90 {

// ---- consumers ----
// Each consumer reads only its own slice of an activation row and fetches it itself: nothing to synchronise.
__device__ __forceinline__ uint8_t* slice(uint8_t* row, int warp) { return row + warp * kSlice; }
__device__ __forceinline__ const uint8_t* slice(const half* row, int warp) {
  return reinterpret_cast<const uint8_t*>(row) + warp * kSlice;
}
constexpr int kSliceLanes = kSlice / 16;  // 24

template <class C>
__device__ __forceinline__ void request_rows(MoeDecodeShared<C>& s, const half* rows, int n, int slot,
                                             int warp) {
  const int lane = threadIdx.x & 31;
  if (lane < kSliceLanes) {
    uint8_t* to = slice(s.act[slot], warp) + lane * 16;
    const uint8_t* from = slice(rows, warp) + lane * 16;
#pragma unroll 1
    for (int r = 0; r < n; ++r, to += kRowStride, from += kHidden * 2) cp_async(to, from);
  }
}
__device__ __forceinline__ bool has_empty(uint4 v) {
  return v.x == kEmpty || v.y == kEmpty || v.z == kEmpty || v.w == kEmpty;
}
// A vector of h that this lane has copied; waits until it is complete, reading again what was not yet
// written. When that takes too long, what is missing is NaN.
__device__ __forceinline__ uint4 wait_for_words(uint8_t* to, const uint8_t* from, const Params& p) {
  uint4 v = *reinterpret_cast<const uint4*>(to);
  if (!has_empty(v)) return v;
  Patience patience;
  do v = ld_volatile(from);
  while (has_empty(v) && !patience.ended(p.fault, p.peers > 0));
  *reinterpret_cast<uint4*>(to) = v;
  return v;
}
template <class C>
__device__ __forceinline__ void wait_for_rows(MoeDecodeShared<C>& s, const half* rows, int n, int slot,
                                              int warp, const Params& p) {
  const int lane = threadIdx.x & 31;
  if (lane < kSliceLanes) {
    uint8_t* to = slice(s.act[slot], warp) + lane * 16;
    const uint8_t* from = slice(rows, warp) + lane * 16;
#pragma unroll 1
    for (int r = 0; r < n; ++r, to += kRowStride, from += kHidden * 2) wait_for_words(to, from, p);
  }
  __syncwarp();
}

// Factors of a lane's column of B, lane / 4, for the 6 blocks: it has its token's values for every G-th
// (factor 1), and zeros for the others (factor 0). It multiplies because the warps are bound by the pipe for
// logic and selection, while the one for integer multiplication is free. The empty asm hides from the
// compiler that the factors are 0 or 1.
template <int G>
struct Belongs {
  uint32_t factor[G];

  __device__ __forceinline__ Belongs() {
    const int g = threadIdx.x >> 2 & 7;
#pragma unroll
    for (int i = 0; i < G && G > 1; ++i) {
      factor[i] = (G == 6 ? g : g % G) == i;
      asm volatile("" : "+r"(factor[i]));
    }
  }
  __device__ __forceinline__ void place(const uint4 (&own)[6 / G], uint4 (&b)[6]) const {
#pragma unroll
    for (int j = 0; j < 6; ++j) {
      const uint4 v = own[j / G];
      const uint32_t f = G == 1 ? 1 : factor[j % G];
      b[j] = make_uint4(v.x * f, v.y * f, v.z * f, v.w * f);
    }
  }
};

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
  const uint16_t* scales =
      reinterpret_cast<const uint16_t*>(at + kWarpScales + g * 6) + (G == 6 ? min(t, 2) : 0);
  constexpr int kScales = G == 6 ? 2 : 6;
  float sa[kScales], sb[kScales];
#pragma unroll
  for (int q = 0; q < kScales / 2; ++q) {
    const uint32_t x = scales[q], y = scales[kSlabThird / 2 + q];
    sa[2 * q] = scale_low(x), sa[2 * q + 1] = scale_high(x);
    sb[2 * q] = scale_low(y), sb[2 * q + 1] = scale_high(y);
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
    const float lo = fmaf(d[1][1], sa[1], d[0][0] * sa[0]);
    const float hi = fmaf(d[1][3], sb[1], d[0][2] * sb[0]);
    const bool odd = t & 1;
    float sum = (odd ? hi : lo) + __shfl_xor_sync(~0u, odd ? lo : hi, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t < 2) red[g + 8 * t] = sum;
  } else if (G == 2) {
    float lo[3], hi[3];
#pragma unroll
    for (int q = 0; q < 3; ++q) {
      lo[q] = fmaf(d[q % kGroups][1], sa[2 * q + 1], d[q % kGroups][0] * sa[2 * q]);
      hi[q] = fmaf(d[q % kGroups][3], sb[2 * q + 1], d[q % kGroups][2] * sb[2 * q]);
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
        const auto& scale = i < 2 ? sa : sb;
        v[q] = fmaf(d[(2 * q + 1) % kGroups][i], scale[2 * q + 1], d[2 * q % kGroups][i] * scale[2 * q]);
      }
      const int column = 2 * t + (i & 1);
      if (column < columns) red[column * 16 + g + (i >> 1) * 8] = (v[0] + v[1]) + v[2];
    }
  }
}

// One slab pair of the ring for this warp.
template <class C, int G>
__device__ __forceinline__ void consume_slab_pair(MoeDecodeShared<C>& s, const uint4 (&b)[6], int warp,
                                                  int columns, RingPlace<C::kStages>& slot) {
  const int third = warp / kWarpsPerThird, at = third * kSlabPairThird + warp % kWarpsPerThird * kWarpBytes;
  Stage<C>& stage = s.stages[slot.index];
  mbarrier_wait(&stage.full[third], slot.phase);
  float* red = &stage.reduce[warp][0][0];
  compute<G>(stage.slab_pair + at, b, columns, red);
  __syncwarp();
  if (arrives((threadIdx.x & 31) == 0)) mbarrier_arrive(&stage.done);
  slot.next();
}

// B of an item, whose columns' activations stand in `slots`: column lane / 4 / G. What is not there repeats
// what is: lanes without a block are multiplied by zero, columns that are too many have no use.
template <class C, int G>
__device__ __forceinline__ void load_columns(MoeDecodeShared<C>& s, uint4 (&b)[6], const Belongs<G>& belongs,
                                             int warp, int columns, uint32_t slots) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int column = G == 6 ? 0 : min(g / G, columns - 1), block = G == 6 ? min(g, 5) : g % G;
  const uint8_t* row = slice(s.act[slots >> 4 * column & 15], warp) + block * 64 + t * 16;
  uint4 own[6 / G];
#pragma unroll
  for (int i = 0; i < 6 / G; ++i) own[i] = *reinterpret_cast<const uint4*>(row + i * G * 64);
  belongs.place(own, b);
}

template <class C, int G>
__device__ __forceinline__ void consume_item(MoeDecodeShared<C>& s, const Item& u, const Belongs<G>& belongs,
                                             int warp, RingPlace<C::kStages>& slot) {
  uint4 b[6];
  load_columns(s, b, belongs, warp, u.columns, u.slots);
#pragma unroll 1
  for (int k = 0; k < u.slab_pairs; ++k) consume_slab_pair<C, G>(s, b, warp, u.columns, slot);
}

// Requests x of all tokens, and clears the scratch of the next launch.
template <class C>
__device__ __forceinline__ void start_consumer(MoeDecodeShared<C>& s, const Params& p, int warp) {
  request_rows(s, p.x, p.tokens, C::kXSlot, warp);
  cp_async_commit_group();
  const Deal<C> deal(p);
  constexpr int kMostVectors = 8 * kTopK * kHidden / 8;
  for (int vector = (threadIdx.x - 64) * deal.sms() + blockIdx.x; vector < p.clear_vectors;
       vector += kConsumers * 32 * deal.sms()) {
    reinterpret_cast<uint4*>(p.h_clear)[vector] = make_uint4(kEmpty, kEmpty, kEmpty, kEmpty);
    if (kConsumers * 32 * C::kSms >= kMostVectors) break;  // one each
  }
  cp_async_wait_group<0>();
  __syncwarp();
}

template <class C>
__device__ void consume(MoeDecodeShared<C>& s, const Params& p, int warp) {
  start_consumer(s, p, warp);
  mbarrier_wait(&s.planned, 0);
  const int n = s.item_count;
  RingPlace<C::kStages> slot;
  const Belongs<6> one;
  const Belongs<2> four;
  const Belongs<1> eight;
  Item next = load_item(s, 0);
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    const Item u = next;
    next = load_item(s, i + 1);
    if (u.wait_rows) {
      cp_async_wait_group<0>();
      wait_for_rows(s, p.h + (size_t)u.pair0 * kHidden, u.wait_rows, u.slots & 15, warp, p);
    }
    if (u.next_rows) {
      request_rows(s, p.h + (size_t)u.next_pair * kHidden, u.next_rows, u.next_slot, warp);
      cp_async_commit_group();
    }
    if (u.columns == 1) {
      consume_item(s, u, one, warp, slot);
    } else if (C::kTokens <= 2 || u.columns <= 4) {
      consume_item(s, u, four, warp, slot);
    } else {
      consume_item(s, u, eight, warp, slot);
    }
  }
}

// One token: slots 0-3 are the experts' h, in sorted order. FC2's slab pairs and slabs in step_expert()'s
// order.
template <class C>
__device__ void consume_one(MoeDecodeShared<C>& s, const Params& p, int warp) {
  start_consumer(s, p, warp);
  const Deal<C> deal(p);
  RingPlace<C::kStages> slot;
  const auto request = [&](int e, int n) {
    request_rows(s, p.h + e * kHidden, n, e, warp);
    cp_async_commit_group();
  };
  const Belongs<6> one;
  const Belongs<2> two;
  uint4 b[6];
  load_columns(s, b, one, warp, 1, C::kXSlot);
  int slab_pairs = 0;
  for (int e = 0; e < kTopK; ++e) slab_pairs += deal.fc1_slab_pairs(deal.fc1_place(e));
  const int early = C::kSms > 0 ? slab_pairs - 3 : max(slab_pairs - 3, 0);
  if (C::kSms == 0 && slab_pairs == 0) request(0, 2);
#pragma unroll 1
  for (int k = 0; k < slab_pairs; ++k) {
    if (k == early) request(0, 2);
    consume_slab_pair<C, 6>(s, b, warp, 1, slot);
  }
  request(2, 1);
  // A block's lane multiplies the very vector that it has copied.
  const int lane = threadIdx.x & 31;
  uint4 own[1] = {};
  const auto wait_for_own = [&](int e) {
    if (lane < kSliceLanes)
      own[0] =
          wait_for_words(slice(s.act[e], warp) + lane * 16, slice(p.h + e * kHidden, warp) + lane * 16, p);
  };
#pragma unroll 1
  for (int e = 0; e < kTopK; ++e) {
    if (e == kTopK - 1 && deal.has_tail()) {
#pragma unroll 1
      for (int a = 0; a < kTopK; a += 2) {
        if (a > 0) {
          cp_async_wait_group<0>();
          wait_for_own(e);
        }
        if (a > 0 || C::kSms == 0) __syncwarp();  // on a rank no slab pair need have come between
        load_columns(s, b, two, warp, 2, a | (a + 1) << 4);
        consume_slab_pair<C, 2>(s, b, warp, 2, slot);
      }
    } else {
      if (e < 2)
        cp_async_wait_group<1>();  // rows 0 and 1, not yet 2
      else
        cp_async_wait_group<0>();
      wait_for_own(e);
    }
    if (e == 2) request(3, 1);
    one.place(own, b);
#pragma unroll 1
    for (int k = 0; k < deal.fc2_slab_pairs(); ++k) consume_slab_pair<C, 6>(s, b, warp, 1, slot);
  }
}

}  // namespace moesaic::cuda::sm90
