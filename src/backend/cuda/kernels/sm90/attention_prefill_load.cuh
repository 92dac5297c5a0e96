// attention_prefill.cu: a CTA's shared memory, the blocks that a tile attends to, and the warps that bring
// them.
#pragma once

#include "backend/cuda/kernels/common/attention_parts.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/sm90/attention.h"

namespace moesaic::cuda::attention_prefill {

using namespace sm90;

inline constexpr int kBlockPages = 4, kBlockTokens = kBlockPages * kPageTokens, kSpanBlocks = 8;
inline constexpr int kGroupThreads = 128;

// The CTA for a head dimension. Each thread begins with 128 registers where it has 512, else with 168.
template <int D>
struct PrefillCta {
  static constexpr int kGroups = prefill_groups(D), kComputing = kGroups * kGroupThreads;
  static constexpr int kThreads = kComputing + kGroupThreads;
  static constexpr int kLoaderRegisters = kGroups == 3 ? 32 : 40,
                       kComputeRegisters = kGroups == 3 ? 160 : 232;
  static constexpr bool kSharesQueries = kGroups == 3;
};

template <int D, bool kFp8>
struct PrefillShared {
  using Cta = PrefillCta<D>;
  static constexpr int kStages = D == 128 ? 2 : 3, kRaw = D == 128 ? 1 : 2;
  static constexpr int kRawBytes = kFp8 ? kBlockTokens * D : 16;
  alignas(1024)
      __nv_bfloat16 q[Cta::kSharesQueries ? Cta::kGroups : 1][Cta::kSharesQueries ? kGroupRows * D : 8];
  alignas(1024) __nv_bfloat16 k[kStages][kBlockTokens * D];  // [D / 64][keys][64]
  alignas(1024) __nv_bfloat16 v[kStages][kBlockTokens * D];  // [pages][D][32]
  alignas(128) uint8_t raw[kRaw][2][kRawBytes];              // K's and V's pages as they come
  float total[D / 2][Cta::kComputing];                       // each thread's
  struct Ring {
    uint64_t full[kStages], empty[kStages];
  } of_k, of_v;
  uint64_t arrived[kRaw];
};

// Position in the ring of the n-th block.
template <int kStages>
struct StagePosition {
  int stage;
  uint32_t phase;
  __device__ explicit StagePosition(unsigned n) : stage(n % kStages), phase(n / kStages & 1) {}
};

struct BlockRange {
  int from, to;  // blocks, inclusive
};
// The blocks that `count` tokens from the tile's token `at` on attend to.
__device__ inline BlockRange blocks_of(const Attention& p, const RowTile& tile, int at, int count) {
  const int first = tile.position + at, last = first + count - 1;
  return {p.window > 0 ? max(0, first - p.window + 1) / kBlockTokens : 0,
          count > 0 ? last / kBlockTokens : -1};
}

// Returns the place of page `index` of block i in the cache, in elements. A page that no row attends to gives
// way to one that some row does: its weights are zero.
template <int D>
__device__ int64_t locate(const Attention& p, const RowTile& tile, int i, int index) {
  const int first = p.window > 0 ? max(0, tile.position - p.window + 1) / kPageTokens : 0;
  const int last = (tile.position + tile.count - 1) / kPageTokens;
  const int page = min(max(i * kBlockPages + index, first), last);
  return page_at(p, tile, page, blockIdx.y, kPageTokens * D);
}

template <int D>
__device__ void load_blocks(PrefillShared<D, false>& s, const Attention& p, const RowTile& tile,
                            BlockRange blocks, int thread) {
  constexpr int kWidth = D < 64 ? D : 64, kPart = kPageTokens * kWidth, kPage = kPageTokens * D;
  using S = PrefillShared<D, false>;
  if (thread >= 32) return;
  const int lane = thread;
  const auto *keys = static_cast<const __nv_bfloat16*>(p.k), *values = static_cast<const __nv_bfloat16*>(p.v);
  const uint64_t policy = evict_normal_policy();
  for (int i = blocks.from; i <= blocks.to; ++i) {
    const StagePosition<S::kStages> slot(i - blocks.from);
    const int64_t at = lane < kBlockPages ? locate<D>(p, tile, i, lane) : 0;
    const auto take = [&](typename S::Ring& ring) {
      mbarrier_wait(ring.empty + slot.stage, slot.phase ^ 1);
      if (lane == 0) mbarrier_arrive_expect_tx(ring.full + slot.stage, kBlockPages * kPage * 2);
      __syncwarp();
    };
    take(s.of_k);
    for (int part = 0; lane < kBlockPages && part < D / kWidth; ++part)
      cp_async_bulk(s.k[slot.stage] + (part * kBlockPages + lane) * kPart, keys + at + part * kPart,
                    kPart * 2, s.of_k.full + slot.stage, policy);
    take(s.of_v);
    if (lane < kBlockPages)
      cp_async_bulk(s.v[slot.stage] + lane * kPage, values + at, kPage * 2, s.of_v.full + slot.stage, policy);
  }
}

// Eight elements.
__device__ inline void widen(__nv_bfloat16* to, const uint8_t* from) {
  const uint2 bytes = *reinterpret_cast<const uint2*>(from);
  const uint2 low = widen_e4m3(bytes.x), high = widen_e4m3(bytes.y);
  *reinterpret_cast<uint4*>(to) = {low.x, low.y, high.x, high.y};
}
// A block's keys, and its values, from bytes to the order of load_blocks().
template <int D>
__device__ void widen_keys(__nv_bfloat16* k, const uint8_t* raw, int thread) {
  constexpr int kWidth = D < 64 ? D : 64, kPage = kPageTokens * D, kRowChunks = kWidth / 8;
  for (int i = thread; i < kBlockTokens * D / 8; i += kGroupThreads) {
    const int chunk = i % kRowChunks, slot = i / kRowChunks % kPageTokens;
    const int part = i / (kRowChunks * kPageTokens) % (D / kWidth), page = i / (kPage / 8);
    widen(k + ((part * kBlockPages + page) * kPageTokens + slot) * kWidth +
              swizzled_chunk(2 * kWidth, slot, chunk),
          raw + i * 8);
  }
}
template <int D>
__device__ void widen_values(__nv_bfloat16* v, const uint8_t* raw, int thread) {
  constexpr int kPage = kPageTokens * D;
  for (int i = thread; i < kBlockTokens * D / 8; i += kGroupThreads) {
    const int chunk = i % 4, d = i / 4 % D, page = i / (kPage / 8);
    widen(v + page * kPage + d * kPageTokens + swizzled_chunk(64, d, chunk), raw + i * 8);
  }
}

template <int D>
__device__ void load_blocks(PrefillShared<D, true>& s, const Attention& p, const RowTile& tile,
                            BlockRange blocks, int thread) {
  using S = PrefillShared<D, true>;
  constexpr int kPage = kPageTokens * D;  // bytes
  const auto *keys = static_cast<const uint8_t*>(p.k), *values = static_cast<const uint8_t*>(p.v);
  const uint64_t policy = evict_normal_policy();
  const auto ask = [&](int i) {
    if (thread >= 32 || i > blocks.to) return;
    const StagePosition<S::kRaw> slot(i - blocks.from);
    uint64_t* arrived = s.arrived + slot.stage;
    if (thread == 0) mbarrier_arrive_expect_tx(arrived, 2 * kBlockPages * kPage);
    __syncwarp();
    if (thread >= kBlockPages) return;
    const int64_t at = locate<D>(p, tile, i, thread);
    cp_async_bulk(s.raw[slot.stage][0] + thread * kPage, keys + at, kPage, arrived, policy);
    cp_async_bulk(s.raw[slot.stage][1] + thread * kPage, values + at, kPage, arrived, policy);
  };
  for (int i = 0; i < S::kRaw; ++i) ask(blocks.from + i);
  for (int i = blocks.from; i <= blocks.to; ++i) {
    const StagePosition<S::kRaw> raw(i - blocks.from);
    const StagePosition<S::kStages> slot(i - blocks.from);
    mbarrier_wait(s.arrived + raw.stage, raw.phase);
    const auto bring = [&](typename S::Ring& ring, auto&& widen_it) {
      mbarrier_wait(ring.empty + slot.stage, slot.phase ^ 1);
      widen_it();
      fence_proxy_async();
      warpgroup_barrier(1);
      if (thread == 0) mbarrier_arrive(ring.full + slot.stage);
    };
    bring(s.of_k, [&] { widen_keys<D>(s.k[slot.stage], s.raw[raw.stage][0], thread); });
    bring(s.of_v, [&] { widen_values<D>(s.v[slot.stage], s.raw[raw.stage][1], thread); });
    ask(i + S::kRaw);
  }
}

}  // namespace moesaic::cuda::attention_prefill
