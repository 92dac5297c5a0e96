// gemm_wgmma.cuh: what becomes of a tile's sums. A consumer warpgroup has 64 rows of all tokens in its
// registers: a lane has rows lane / 4 and + 8 of its warp's 16, of two tokens in each eight.
//
// Parts    The sums of 16 tokens at a time go through shared memory. There a thread finds neighbouring rows
//          of one token, and it reads and stores neighbouring bytes; from registers each store has 4 or 2
//          bytes of a place.
// Cluster  The sums of a split contraction are joined and stored straight from registers.
//
// Barriers One for each warpgroup, once a part: there is room for two parts, and a thread that writes one has
//          read the one before the last. Between two tiles nobody waits: a warp has the next tile's sums
//          only after all four have begun its products: a wgmma is one operation of the four, and for
//          mma.sync the ring of activations is shorter than the contraction.
// Ordering What a part reads is asked for two parts ahead, since the compiler moves no load before a store.
// Rounding A sum times its row's factor plus its bias is one fused operation, named in the code. Left to the
//          compiler, a token's result depended on its place in the tile.
#pragma once

#include "backend/cuda/kernels/common/epilogue.cuh"
#include "backend/cuda/kernels/sm90/gemm_wgmma_weights.cuh"

namespace moesaic::cuda::sm90 {

// The place of a warp's sums in the product.
struct OutputTile {
  WorkTile work_tile;
  int row;           // the warp's first of 16 rows, in the matrix
  int weight_tiles;  // weight tiles of the matrix
  float factor[2];   // for rows lane / 4 and + 8
  uint8_t* staging;  // the warpgroup's
  __device__ int group_row() const { return row - (row / 16 % 4) * 16; }
};

// ---- the sums of a cluster ----

// Eight tokens of a dense product; a lane has two. All that the epilogue reads is asked for together, since
// the compiler moves no load before a store.
template <class Epilogue>
struct EightTokens {
  const Epilogue& e;
  const OutputTile& at;
  const int first, weight_tile, pair;
  decltype(prepare(e, 0, 0, 0, 0)) ready[2];
  float bias[2];

  __device__ __forceinline__ EightTokens(const Epilogue& epilogue, const OutputTile& tile, int first_token)
      : e(epilogue),
        at(tile),
        first(first_token + threadIdx.x % 4 * 2),
        weight_tile(min(at.row / kWeightTileRows, at.weight_tiles - 1)),
        pair(at.row % kWeightTileRows / 2 + threadIdx.x % 32 / 4) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
      ready[k] =
          prepare(e, weight_tile, pair, at.work_tile.first + min(first + k, at.work_tile.count - 1), 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) bias[h] = ready[0].bias[h], ready[0].bias[h] = ready[1].bias[h] = 0;
  }
  __device__ __forceinline__ void finish_with(const float (&sum)[4]) const {
    if (at.row / kWeightTileRows >= at.weight_tiles) return;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (first + k < at.work_tile.count)
        finish(e, ready[k], weight_tile, pair, at.work_tile.first + first + k,
               __fmaf_rn(sum[k], at.factor[0], bias[0]), __fmaf_rn(sum[2 + k], at.factor[1], bias[1]));
    }
  }
};

// The sums of a split contraction, by all consumers; the producer's warpgroup meets them in watch_join(). The
// cluster's CTA r finishes eights n r / split to n (r + 1) / split of the n that the tile has.
template <int kSums, class Plan, class Epilogue>
__device__ __forceinline__ void join_tile(const Plan& plan, const Epilogue& e, const OutputTile& at,
                                          int split, const float (&sum)[kSums]) {
  const int eights = (at.work_tile.count + 7) / 8, rank = blockIdx.x % split;
  float4* mine = plan.sums(warp_index()) + threadIdx.x % 32;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    if (i >= eights) break;
    mine[32 * i] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
  cluster_meet();
  for (int i = eights * rank / split; i < eights * (rank + 1) / split; ++i) {
    const EightTokens<Epilogue> tokens(e, at, 8 * i);
    float4 parts[kMostSplit] = {};
#pragma unroll
    for (int r = 0; r < kMostSplit; ++r)
      if (r < split) parts[r] = ld_cluster(mapa(mine + 32 * i, r));
    float total[4] = {};
#pragma unroll
    for (const float4& part : parts)
      total[0] += part.x, total[1] += part.y, total[2] += part.z, total[3] += part.w;
    tokens.finish_with(total);
  }
  cluster_meet();
}
__device__ inline void watch_join() {
  __syncthreads();
  cluster_meet();
  cluster_meet();
}

// ---- in parts ----

inline constexpr int kPartTokens = 16, kPartBytes = kPartTokens * kGroupRows * 4;
inline constexpr int kStagingBytes = 2 * kPartBytes;  // a warpgroup's

// Values of 16 tokens, [token][16 chunks of four rows]: a row's sums times its factor, and its bias. Neither
// the warps' writes nor the epilogues' reads meet in a bank.
struct PartRoom {
  float* room;
  __device__ float4* chunk(int token, int c) const {
    return reinterpret_cast<float4*>(room) + token * (kGroupRows / 4) + (c ^ c / 8 * 6 ^ token / 2 % 4 * 2);
  }
  // sum: the lane's 8.
  __device__ void write(const OutputTile& at, const float (&bias)[2], const float* sum) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, h = i / 2 % 2;
      const int row = at.row % kGroupRows + lane / 4 + 8 * h;
      reinterpret_cast<float*>(chunk(token, row / 4))[row % 4] = __fmaf_rn(sum[i], at.factor[h], bias[h]);
    }
  }
};

// An epilogue says what bias a row has, what a part needs (Ahead), and what becomes of it. What is the same
// for a warpgroup's tile is in its type, so that the code of the parts has no branches.

// Rows of F32: a thread has four rows of tokens `token` and + 8 of a part. kWhole: all 64 rows are there, and
// aligned.
template <bool kAdd, bool kWhole>
struct StoreParts {
  struct Ahead {
    float4 before[2] = {};
  };
  const Store& e;
  const int chunk, token, there;  // there: rows from this thread's first one on
  float* const out;

  __device__ StoreParts(const Store& epilogue, const OutputTile& at)
      : e(epilogue),
        chunk(threadIdx.x % 16),
        token(threadIdx.x % 128 / 16),
        there(e.rows - at.group_row() - 4 * chunk),
        out(e.out + (at.work_tile.first + token) * e.stride + at.group_row() + 4 * chunk) {}
  __device__ float bias(const OutputTile& at, int row) const {
    if (e.bias == nullptr || row >= e.rows) return 0;
    return e.bias[static_cast<int64_t>(at.work_tile.expert) * e.rows + row];
  }
  __device__ Ahead ask(int first, int count) const {
    Ahead ahead;
    if constexpr (kAdd) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* from = out + (first + 8 * n) * e.stride;
        if (token + first + 8 * n < count) ahead.before[n] = load(from);
      }
    }
    return ahead;
  }
  __device__ void take(const PartRoom& part, const Ahead& ahead, int first, int count) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float4 v = *part.chunk(token + 8 * n, chunk);
      if constexpr (kAdd) {
        const float4& b = ahead.before[n];
        v = {b.x + v.x, b.y + v.y, b.z + v.z, b.w + v.w};
      }
      if (token + first + 8 * n < count) store(out + (first + 8 * n) * e.stride, v);
    }
  }
  __device__ float4 load(const float* from) const {
    if constexpr (kWhole) return *reinterpret_cast<const float4*>(from);
    return {there > 0 ? from[0] : 0, there > 1 ? from[1] : 0, there > 2 ? from[2] : 0,
            there > 3 ? from[3] : 0};
  }
  __device__ void store(float* to, const float4& v) const {
    if constexpr (kWhole) {
      *reinterpret_cast<float4*>(to) = v;
    } else {
      if (there > 0) to[0] = v.x;
      if (there > 1) to[1] = v.y;
      if (there > 2) to[2] = v.z;
      if (there > 3) to[3] = v.w;
    }
  }
};

// A warpgroup's rows: all of Q, of K or of V, in BF16, or anything.
enum class HeadKind { kQuery, kKey, kValue, kAny };
__device__ inline HeadKind kind_of(const Qkv& e, const OutputTile& at) {
  const int tile = at.group_row() / kWeightTileRows, first = HeadPart(e, tile, 0).head,
            last = HeadPart(e, tile + 1, 0).head;
  if (tile + 1 >= at.weight_tiles) return HeadKind::kAny;
  if (last < e.heads) return HeadKind::kQuery;
  if (e.fp8 || first < e.heads) return HeadKind::kAny;
  if (last < e.heads + e.kv_heads) return HeadKind::kKey;
  return first < e.heads + e.kv_heads ? HeadKind::kAny : HeadKind::kValue;
}

// Q, K and V: a thread has four dimensions of one token in each half of a head. Threads beside each other
// have a token's dimensions, of V a dimension's tokens.
template <HeadKind kKind>
struct QkvParts {
  struct Ahead {
    float4 turns[2];  // cosine and sine of two dimensions each
    int slot = 0;
  };
  const Qkv& e;
  const int token, chunk;  // chunk: of the first half's dimensions; the other's are two behind
  const bool there;
  const int first_row, half;
  const HeadPart part;

  // Four pairs, of the warpgroup's eight times four.
  __device__ static int quad() {
    return kKind == HeadKind::kValue ? threadIdx.x % 128 / 16 : threadIdx.x % 8;
  }
  __device__ static int weight_tile(const OutputTile& at) {
    return at.group_row() / kWeightTileRows + quad() / 4;
  }
  __device__ QkvParts(const Qkv& epilogue, const OutputTile& at)
      : e(epilogue),
        token(kKind == HeadKind::kValue ? threadIdx.x % 16 : threadIdx.x % 128 / 8),
        chunk(quad() / 2 * 4 + quad() % 2),
        there(weight_tile(at) < at.weight_tiles),
        first_row(at.work_tile.first),
        half(e.head_dim / 2),
        part(e, min(weight_tile(at), at.weight_tiles - 1), quad() % 4 * 4) {}
  __device__ bool is_query() const {
    return kKind == HeadKind::kQuery || (kKind == HeadKind::kAny && part.head < e.heads);
  }
  __device__ bool is_value() const {
    return kKind == HeadKind::kValue || (kKind == HeadKind::kAny && part.head >= e.heads + e.kv_heads);
  }
  __device__ float bias(const OutputTile& at, int row) const {
    const HeadPart of_row(e, min(row / kWeightTileRows, at.weight_tiles - 1),
                          row % kWeightTileRows / 16 * 8 + row % 8);
    return e.bias[of_row.head * e.head_dim + of_row.d + row / 8 % 2 * half];
  }
  __device__ Ahead ask(int first, int count) const {
    const int row = first_row + min(first + token, count - 1);
    Ahead ahead{};
    if (!is_value()) {
      const auto* from = reinterpret_cast<const float4*>(e.rotation + (row * half + part.d));
      ahead.turns[0] = from[0], ahead.turns[1] = from[1];
    }
    if (!is_query()) ahead.slot = e.slots[row];
    return ahead;
  }
  __device__ void take(const PartRoom& p, const Ahead& ahead, int first, int count) const {
    float4 low = *p.chunk(token, chunk), high = *p.chunk(token, chunk + 2);
    if (!is_value()) {
      rotate({ahead.turns[0].x, ahead.turns[0].y}, low.x, high.x);
      rotate({ahead.turns[0].z, ahead.turns[0].w}, low.y, high.y);
      rotate({ahead.turns[1].x, ahead.turns[1].y}, low.z, high.z);
      rotate({ahead.turns[1].z, ahead.turns[1].w}, low.w, high.w);
    }
    if (first + token >= count || !there) return;
    store(part.d, first_row + first + token, ahead.slot, low);
    store(part.d + half, first_row + first + token, ahead.slot, high);
  }
  template <class Value>
  struct alignas(4 * sizeof(Value)) Four {
    Value v[4];
  };
  __device__ void store(int d, int row, int slot, const float4& v) const {
    if (kKind == HeadKind::kAny && e.fp8 && !is_query()) {
      const auto fp8 = [](float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); };
      store(d, row, slot, Four<__nv_fp8_storage_t>{{fp8(v.x), fp8(v.y), fp8(v.z), fp8(v.w)}});
    } else {
      store(d, row, slot,
            Four<__nv_bfloat16>{{__float2bfloat16_rn(v.x), __float2bfloat16_rn(v.y), __float2bfloat16_rn(v.z),
                                 __float2bfloat16_rn(v.w)}});
    }
  }
  template <class Value>
  __device__ void store(int d, int row, int slot, const Four<Value>& four) const {
    if (is_query()) {
      *reinterpret_cast<Four<Value>*>(query_at(e, part.head, d, row)) = four;
      return;
    }
    constexpr bool kFp8 = sizeof(Value) == 1;
    const bool key = !is_value();
    const int in_page = slot % kPageTokens;
    uint8_t* page = page_of(e, kFp8, key, part.head - e.heads - (key ? 0 : e.kv_heads), slot);
    if (key) {
      *reinterpret_cast<Four<Value>*>(page + place_in_page(e, kFp8, key, in_page, d)) = four;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<Value*>(page + place_in_page(e, kFp8, key, in_page, d + i)) = four.v[i];
  }
};

// sum: of a warpgroup's 64 rows and up to 2 kSums tokens.
template <class Parts, int kSums, class Epilogue>
__device__ __forceinline__ void finish_in_parts(const Epilogue& e, const OutputTile& at,
                                                const float (&sum)[kSums]) {
  const int count = at.work_tile.count, row = at.row + threadIdx.x % 32 / 4;
  const Parts parts(e, at);
  typename Parts::Ahead ahead[2] = {parts.ask(0, count), parts.ask(kPartTokens, count)};
  const float bias[2] = {parts.bias(at, row), parts.bias(at, row + 8)};
#pragma unroll
  for (int i = 0; i < kSums / 8; ++i) {
    const int first = i * kPartTokens;
    if (first >= count) break;
    const PartRoom part{reinterpret_cast<float*>(at.staging + i % 2 * kPartBytes)};
    part.write(at, bias, sum + 8 * i);
    warpgroup_barrier(threadIdx.x / 128 + 1);
    parts.take(part, ahead[i % 2], first, count);
    ahead[i % 2] = parts.ask(first + 2 * kPartTokens, count);
  }
}

// How h stands in the second product's tiles: F16 or E4M3.
template <bool kFp8>
struct HiddenTile {
  using Value = std::conditional_t<kFp8, uint8_t, __half>;
  static constexpr int kRowBytes = kStepBytes<kFp8>, kBlockChunks = kRowBytes / 2 / 16;
  // Column 8 c + 2 pair + e of 32, in bytes.
  __device__ static int at(int c, int pair, int e) {
    return kFp8 ? pair / 2 * 16 + c * 4 + pair % 2 * 2 + e : pair * 16 + c * 4 + e * 2;
  }
  __device__ static Value of(float h) {
    if constexpr (kFp8) {
      return __nv_cvt_float_to_fp8(h * (kHScale * kFp8Scale), __NV_SATFINITE, __NV_E4M3);
    } else {
      return __float2half_rn(h * kHScale);
    }
  }
  __device__ static int place(int chunk, int token) {
    return kFp8 ? fp8_place(chunk, token) : chunk_place(chunk, token);
  }
};

// Gate and up are neighbouring rows, 4 lanes apart: even rows take slab a's pairs and odd ones slab b's, a
// column of h each. The warpgroup's 32 columns go through shared memory, [token][chunks], to their tile.
template <bool kFp8, int kSums>
__device__ __forceinline__ void finish_swiglu(const WgmmaSwiGlu& e, const OutputTile& at,
                                              const float (&sum)[kSums]) {
  using Hidden = HiddenTile<kFp8>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, odd = g % 2;
  if (at.row / kWeightTileRows >= at.weight_tiles) return;  // none of the warpgroup's rows is there
  const int column = at.row / 2 + 4 * odd + g / 2;
  const int64_t bias = static_cast<int64_t>(at.work_tile.expert) * e.columns + column;
  const float gate_bias = e.gate_bias[bias], up_bias = e.up_bias[bias];
  const float mine = odd ? at.factor[1] : at.factor[0];
  const float theirs = __shfl_xor_sync(~0u, odd ? at.factor[0] : at.factor[1], 4);
  // Column 8 warp + 4 odd + g / 2 of the 32.
  auto* to =
      reinterpret_cast<typename Hidden::Value*>(at.staging + Hidden::at(warp, 2 * odd + g / 4, g / 2 % 2));
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    if (8 * i >= at.work_tile.count) break;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float v0 = sum[4 * i + k], v1 = sum[4 * i + 2 + k];
      const float other = __shfl_xor_sync(~0u, odd ? v0 : v1, 4) * theirs, own = (odd ? v1 : v0) * mine;
      const float y = swiglu((odd ? other : own) + gate_bias, (odd ? own : other) + up_bias);
      to[(8 * i + lane % 4 * 2 + k) * 32] = Hidden::of(y);
    }
  }
  constexpr int kChunks = Hidden::kBlockChunks;
  const int block = e.first / kBlock + at.row / 64, width = tile_width(at.work_tile.count),
            group = threadIdx.x / 128 + 1;
  warpgroup_barrier(group);
  const int64_t tile = static_cast<int64_t>(at.work_tile.start) * (kHidden / 64 * Hidden::kRowBytes) +
                       static_cast<int64_t>(block / 2) * width * Hidden::kRowBytes;
  for (int i = threadIdx.x % 128; i < at.work_tile.count * kChunks; i += 128) {
    const int token = i / kChunks, chunk_of_row = block % 2 * kChunks + i % kChunks;
    const int64_t place = tile + token * Hidden::kRowBytes + Hidden::place(chunk_of_row, token) * 16;
    const uint4 chunk = *reinterpret_cast<const uint4*>(at.staging + i * 16);
    *reinterpret_cast<uint4*>(e.out + place) = chunk;
    for (int peer = 0; peer < e.peers; ++peer) *reinterpret_cast<uint4*>(e.peer_out[peer] + place) = chunk;
  }
  warpgroup_barrier(group);
}

template <class Weights, int kSums>
__device__ __forceinline__ void finish_tile(const WgmmaSwiGlu& e, const OutputTile& at,
                                            const float (&sum)[kSums]) {
  finish_swiglu<Weights::kFp8>(e, at, sum);
}
template <class Weights, int kSums>
__device__ __forceinline__ void finish_tile(const Store& e, const OutputTile& at, const float (&sum)[kSums]) {
  const bool whole = at.group_row() + kGroupRows <= e.rows && e.stride % 4 == 0 &&
                     reinterpret_cast<uintptr_t>(e.out) % 16 == 0;
  if constexpr (!Weights::kGrouped) {
    if (e.add && whole) return finish_in_parts<StoreParts<true, true>>(e, at, sum);
    if (e.add) return finish_in_parts<StoreParts<true, false>>(e, at, sum);
  }
  if (whole) return finish_in_parts<StoreParts<false, true>>(e, at, sum);
  finish_in_parts<StoreParts<false, false>>(e, at, sum);
}
template <class Weights, int kSums>
__device__ __forceinline__ void finish_tile(const Qkv& e, const OutputTile& at, const float (&sum)[kSums]) {
  switch (kind_of(e, at)) {
    case HeadKind::kQuery:
      return finish_in_parts<QkvParts<HeadKind::kQuery>>(e, at, sum);
    case HeadKind::kKey:
      return finish_in_parts<QkvParts<HeadKind::kKey>>(e, at, sum);
    case HeadKind::kValue:
      return finish_in_parts<QkvParts<HeadKind::kValue>>(e, at, sum);
    case HeadKind::kAny:
      return finish_in_parts<QkvParts<HeadKind::kAny>>(e, at, sum);
  }
}

}  // namespace moesaic::cuda::sm90
