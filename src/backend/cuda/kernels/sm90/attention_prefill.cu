// Attention of many rows of a sequence (prefill): flash attention with wgmma.
//
// Maths    as attention_decode.cu has it, of rows that attend to no later key; attention.h has the order
//          of sums.
// Shapes   a RowTile: consecutive rows of one sequence. 128 MMA rows, each (token, query head) of a KV
//          head's group: row r is token r / group, head r % group. Keys in blocks of 128 (4 pages), 8
//          blocks a span.
//
// Grid     x: tile, the last (which have the most keys) first; y: KV head
// CTA      warpgroups 0, 1: 64 MMA rows each. Both products take their left operand from registers: the
//          queries, which stay, and the weights, which leave the scores where the second product wants
//          them. One warpgroup's products run under the other's exponentials.
//          warpgroup 2: its first warp streams blocks of keys and values through a ring of bulk copies;
//          with FP8 pages, all four of its warps widen a block of bytes into the ring.
//
// Barriers full[stage]: the copies have landed (FP8: one arrival behind the widening warps' barrier)
//          empty[stage]: the eight computing warps have read it     arrived[raw]: FP8's bytes have landed
// Ordering A computing warp arrives at `empty` after warpgroup_wait<0>: wgmma has read the stage by then.
//          What the widening warps write is made visible to wgmma (async proxy) by fence.proxy.async
//          before they meet. Everything but parameters is read after the wait for the predecessor.
// Resident No CTA waits for another.
//
// Bytes    a KV head's keys and values once per 128 / group tokens, from L2 but for the first time.
// Shared   K and V of 4 stages of 128 keys (D = 64: 128 KB; D = 128: 2 stages), FP8's bytes, D / 2 floats
//          a thread of sums over spans; one CTA a multiprocessor. Registers: 232 a computing thread, 40 a
//          loading one.
// Floor    4 D operations a score and one exponential: at D = 64 the exponentials (16 a cycle and
//          multiprocessor) take as long as the products (2,048 multiply-adds).
#include "backend/cuda/kernels/common/attention_parts.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/wgmma.cuh"
#include "backend/cuda/kernels/sm90/attention.h"

namespace moesaic::cuda {
namespace {

using namespace sm90;

constexpr int kBlockPages = 4, kBlockTokens = kBlockPages * kPageTokens, kSpanBlocks = 8;
constexpr int kGroups = kPrefillGroups, kGroupThreads = 128, kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kLoaderRegisters = 40, kComputeRegisters = 232;  // each of kThreads begins with 168

template <int D, bool kFp8>
struct PrefillShared {
  static constexpr int kStages = D == 128 ? 2 : 4, kRaw = D == 128 ? 1 : 2;
  static constexpr int kRawBytes = kFp8 ? kBlockTokens * D : 16;
  alignas(1024) __nv_bfloat16 k[kStages][kBlockTokens * D];  // [D / 64][keys][64]
  alignas(1024) __nv_bfloat16 v[kStages][kBlockTokens * D];  // [pages][D][32]
  alignas(128) uint8_t raw[kRaw][2][kRawBytes];              // K's and V's pages as they come
  float total[D / 2][kGroups * kGroupThreads];               // each thread's
  uint64_t full[kStages], empty[kStages], arrived[kRaw];
};

// Position in the ring of the n-th block.
template <int kStages>
struct StagePosition {
  int stage;
  uint32_t phase;
  __device__ explicit StagePosition(int n) : stage(n % kStages), phase(n / kStages & 1) {}
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

// ---- the warps that load ----

// Where page `index` of block i lies in the cache, in elements. Pages that no row attends to are stood for by
// one that some row does: their weights are zero.
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
  if (thread >= 32) return;
  const int lane = thread;
  const auto *keys = static_cast<const __nv_bfloat16*>(p.k), *values = static_cast<const __nv_bfloat16*>(p.v);
  const uint64_t policy = evict_normal_policy();
  for (int i = blocks.from; i <= blocks.to; ++i) {
    const StagePosition<PrefillShared<D, false>::kStages> slot(i - blocks.from);
    const int64_t at = lane < kBlockPages ? locate<D>(p, tile, i, lane) : 0;
    mbarrier_wait(s.empty + slot.stage, slot.phase ^ 1);
    if (lane == 0) mbarrier_arrive_expect_tx(s.full + slot.stage, 2 * kBlockPages * kPage * 2);
    __syncwarp();
    if (lane >= kBlockPages) continue;
    for (int part = 0; part < D / kWidth; ++part)
      cp_async_bulk(s.k[slot.stage] + (part * kBlockPages + lane) * kPart, keys + at + part * kPart,
                    kPart * 2, s.full + slot.stage, policy);
    cp_async_bulk(s.v[slot.stage] + lane * kPage, values + at, kPage * 2, s.full + slot.stage, policy);
  }
}

// Eight elements.
__device__ inline void widen(__nv_bfloat16* to, const uint8_t* from) {
  const uint2 bytes = *reinterpret_cast<const uint2*>(from);
  const uint2 low = widen_e4m3(bytes.x), high = widen_e4m3(bytes.y);
  *reinterpret_cast<uint4*>(to) = {low.x, low.y, high.x, high.y};
}
// A block from bytes to the order of load_blocks().
template <int D>
__device__ void widen_block(__nv_bfloat16* k, __nv_bfloat16* v, const uint8_t (&raw)[2][kBlockTokens * D],
                            int thread) {
  constexpr int kWidth = D < 64 ? D : 64, kPage = kPageTokens * D, kChunks = kBlockTokens * D / 8;
  constexpr int kRowChunks = kWidth / 8;
  for (int i = thread; i < kChunks; i += kGroupThreads) {
    const int chunk = i % kRowChunks, slot = i / kRowChunks % kPageTokens;
    const int part = i / (kRowChunks * kPageTokens) % (D / kWidth), page = i / (kPage / 8);
    widen(k + ((part * kBlockPages + page) * kPageTokens + slot) * kWidth +
              swizzled_chunk(2 * kWidth, slot, chunk),
          raw[0] + i * 8);
  }
  for (int i = thread; i < kChunks; i += kGroupThreads) {
    const int chunk = i % 4, d = i / 4 % D, page = i / (kPage / 8);
    widen(v + page * kPage + d * kPageTokens + swizzled_chunk(64, d, chunk), raw[1] + i * 8);
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
    mbarrier_wait(s.empty + slot.stage, slot.phase ^ 1);
    widen_block<D>(s.k[slot.stage], s.v[slot.stage], s.raw[raw.stage], thread);
    fence_proxy_async();
    asm volatile("bar.sync 1, %0;" ::"n"(kGroupThreads) : "memory");
    if (thread == 0) mbarrier_arrive(s.full + slot.stage);
    ask(i + S::kRaw);
  }
}

// ---- the warpgroups that compute ----

// The rows of this lane's warp: MMA row 16 warp + 8 h + lane / 4 is token (row / group), head (row % group).
template <int D>
struct PrefillRows {
  uint32_t q[D / 16][4];
  int token[2], head[2], last[2];  // token of the tile, -1: no such row; last: its position
  float scores[kBlockTokens / 2];
  uint32_t weights[kBlockTokens / 16][4];
  float block[D / 2], span[D / 2];
  Running of_block[2], of_span[2], of_total[2];

  __device__ void load(const Attention& p, const RowTile& tile, int group, int warp, int lane) {
    const int heads = p.heads / p.kv_heads, tokens = kGroupRows / heads;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * warp + 8 * h + lane / 4, at = group * tokens + row / heads;
      head[h] = blockIdx.y * heads + row % heads;
      token[h] = row < tokens * heads && at < tile.count ? at : -1;
      last[h] = tile.position + at;
      of_block[h] = of_span[h] = Running::nothing();
      of_total[h] = token[h] >= 0 ? Running::sink(p.sinks[head[h]]) : Running::nothing();
      const auto* from = reinterpret_cast<const uint32_t*>(
          p.q + (static_cast<int64_t>(tile.row + at) * p.heads + head[h]) * D);
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          q[step][2 * i + h] = token[h] >= 0 ? from[step * 8 + i * 4 + lane % 4] : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < D / 2; ++i) block[i] = span[i] = 0;
  }

  __device__ void start_scores(const __nv_bfloat16* k) {
    constexpr int kWidth = D < 64 ? D : 64;
#pragma unroll
    for (int i = 0; i < kBlockTokens / 2; ++i) scores[i] = 0;
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      const int d = step * 16;
      const uint32_t keys = wgmma_operand(smem_addr(k + d / kWidth * kBlockTokens * kWidth)) + d % kWidth / 8;
      Wgmma<kBlockTokens>::run<true, kWidth * 2>(scores, q[step], keys);
    }
    warpgroup_commit_batch();
  }
  __device__ void start_values(const __nv_bfloat16* v) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) block[i] = 0;
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kBlockTokens / 16; ++step) {
      const uint32_t values = wgmma_operand(smem_addr(v + step / 2 * kPageTokens * D)) + step % 2 * 2;
      Wgmma<D>::template run<true, 64>(block, weights[step], values);
    }
    warpgroup_commit_batch();
  }

  // Keys of block i that a row does not attend to.
  __device__ void mask(int i, int window, int lane) {
#pragma unroll
    for (int at = 0; at < kBlockTokens / 2; ++at) {
      const int h = at % 4 / 2, key = i * kBlockTokens + at / 4 * 8 + 2 * (lane % 4) + at % 2;
      if (key > last[h] || (window > 0 && key <= last[h] - window)) scores[at] = -INFINITY;
    }
  }

  // Scores become weights; of_block follows.
  __device__ void softmax() {
    const float scale = score_scale(D);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = kNothing;
#pragma unroll
      for (int i = 0; i < kBlockTokens / 4; ++i) top = fmaxf(top, scores[i / 2 * 4 + 2 * h + i % 2]);
      const float shift = __fmul_rn(quad_max(top), scale);
      float all = 0;
#pragma unroll
      for (int page = 0; page < kBlockPages; ++page) {
        float sum = 0;
#pragma unroll
        for (int i = 8 * page; i < 8 * page + 8; ++i) {
          float& x = scores[i / 2 * 4 + 2 * h + i % 2];
          x = exp2_fast(fmaf(x, scale, -shift));
          sum += x;
        }
        all += sum;
      }
      of_block[h] = {shift, quad_sum(all)};
    }
#pragma unroll
    for (int i = 0; i < kBlockTokens / 4; ++i)
      weights[i / 4][i % 4] = pack_bf16(scores[2 * i], scores[2 * i + 1]);
  }

  __device__ void join_block() {
    const Join by[2] = {join(of_span[0], of_block[0]), join(of_span[1], of_block[1])};
#pragma unroll
    for (int i = 0; i < D / 2; ++i) span[i] = joined(by[i % 4 / 2], span[i], block[i]);
  }
  // total: kGroups * kGroupThreads floats apart.
  __device__ void join_span(float* total) {
    const Join by[2] = {join(of_total[0], of_span[0]), join(of_total[1], of_span[1])};
#pragma unroll
    for (int i = 0; i < D / 2; ++i) {
      float& t = total[i * kGroups * kGroupThreads];
      t = joined(by[i % 4 / 2], t, span[i]);
      span[i] = 0;
    }
    of_span[0] = of_span[1] = Running::nothing();
  }

  __device__ void write(const Attention& p, const RowTile& tile, const float* total, int lane) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (token[h] < 0) continue;
      const int row = tile.row + token[h], q = lane % 4;
      const ActivationRow tiled(p.out_tile, p.heads * D, row);
      const float scale = of_total[h].inverse();
      const auto pair = [&](int n) {  // columns 8 n + 2 q of the head
        const float lo = total[(4 * n + 2 * h) * kGroups * kGroupThreads] * scale;
        const float hi = total[(4 * n + 2 * h + 1) * kGroups * kGroupThreads] * scale;
        return p.bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
      };
#pragma unroll
      for (int block = 0; block < D / 32; ++block) {
        const uint4 chunk = {pair(4 * block), pair(4 * block + 1), pair(4 * block + 2), pair(4 * block + 3)};
        const int column = head[h] * D + 32 * block;
        if (p.out_tile > 0) {
          static_cast<uint4*>(p.out)[tiled.chunk(column / 32, q) / 8] = chunk;
          continue;
        }
        auto* out =
            static_cast<uint32_t*>(p.out) + (static_cast<int64_t>(row) * p.heads * D + column) / 2 + q;
        out[0] = chunk.x, out[4] = chunk.y, out[8] = chunk.z, out[12] = chunk.w;
      }
    }
  }
};

template <int D, bool kFp8>
__device__ void compute_blocks(PrefillShared<D, kFp8>& s, const Attention& p, const RowTile& tile,
                               BlockRange blocks, int group, int lane) {
  using Ring = StagePosition<PrefillShared<D, kFp8>::kStages>;
  const int heads = p.heads / p.kv_heads, tokens = kGroupRows / heads;
  const int first_token = group * tokens, count = min(tokens, tile.count - first_token);
  const BlockRange mine = blocks_of(p, tile, first_token, count);
  const auto wait = [&](int i) {
    const Ring slot(i - blocks.from);
    mbarrier_wait(s.full + slot.stage, slot.phase);
    return slot.stage;
  };
  const auto release = [&](int i) {
    if (arrives(lane == 0)) mbarrier_arrive(s.empty + Ring(i - blocks.from).stage);
  };
  // True if every row attends to all of block i.
  const int lowest = tile.position + first_token, highest = lowest + count - 1;
  const auto whole = [&](int i) {
    return (i + 1) * kBlockTokens - 1 <= lowest && (p.window == 0 || i * kBlockTokens > highest - p.window);
  };
  float* total = &s.total[0][threadIdx.x];
  PrefillRows<D> rows;
  rows.load(p, tile, group, threadIdx.x / 32 % 4, lane);
#pragma unroll
  for (int i = 0; i < D / 2; ++i) total[i * kGroups * kGroupThreads] = 0;
  int i = blocks.from;
  for (; i < mine.from || (count <= 0 && i <= blocks.to); ++i) wait(i), release(i);
  if (count <= 0) return;
  for (; i <= mine.to; ++i) {
    rows.start_scores(s.k[wait(i)]);
    rows.join_block();
    warpgroup_wait<0>();
    warpgroup_fence_operand(rows.scores);
    if (i % kSpanBlocks == 0) rows.join_span(total);
    if (!whole(i)) rows.mask(i, p.window, lane);
    rows.softmax();
    rows.start_values(s.v[Ring(i - blocks.from).stage]);
    warpgroup_wait<0>();
    warpgroup_fence_operand(rows.block);
    release(i);
  }
  rows.join_block();
  rows.join_span(total);
  for (; i <= blocks.to; ++i) wait(i), release(i);
  rows.write(p, tile, total, lane);
}

template <int D, bool kFp8>
__global__ void __launch_bounds__(kThreads, 1) attention_prefill_kernel(const Attention p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  using S = PrefillShared<D, kFp8>;
  auto& s = *reinterpret_cast<S*>(memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i)
      mbarrier_init(s.full + i, 1), mbarrier_init(s.empty + i, kGroups * 4 * kWarpArrivals);
    for (int i = 0; i < S::kRaw; ++i) mbarrier_init(s.arrived + i, 1);
    fence_mbarrier_init();
  }
  launch_dependents();
  wait_for_predecessor();
  __syncthreads();
  // The last tiles of a prompt have the most keys: they go first.
  const RowTile tile = p.tiles[gridDim.x - 1 - blockIdx.x];
  const BlockRange blocks = blocks_of(p, tile, 0, tile.count);
  if (warp >= kGroups * 4) {
    warpgroup_reg_dealloc<kLoaderRegisters>();
    load_blocks(s, p, tile, blocks, static_cast<int>(threadIdx.x) - kGroups * kGroupThreads);
  } else {
    warpgroup_reg_alloc<kComputeRegisters>();
    compute_blocks(s, p, tile, blocks, warp / 4, lane);
  }
}

template <int D, bool kFp8>
Status run(const Attention& p, cudaStream_t stream) {
  const auto kernel = attention_prefill_kernel<D, kFp8>;
  constexpr size_t kShared = sizeof(PrefillShared<D, kFp8>);
  static OncePerDevice prepared;
  const Status status = prepared.run([&] { return set_attributes(kernel, {.max_shared = kShared}); });
  if (!status.ok()) return status;
  return launch(kernel, dim3(p.tile_count, p.kv_heads), dim3(kThreads), kShared, stream, p);
}

}  // namespace

Status attend_prefill(const Attention& p, cudaStream_t stream) {
  return for_shape(p, [&](auto d, auto fp8) { return run<d, fp8>(p, stream); });
}

}  // namespace moesaic::cuda
