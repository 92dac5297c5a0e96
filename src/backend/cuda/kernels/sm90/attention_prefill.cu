// Attention of many rows of a sequence (prefill): flash attention with wgmma.
//
// Maths    as attention_decode.cu has it, of rows that attend to no later key; attention.h has the order
//          of sums.
// Shapes   a RowTile: consecutive rows of one sequence. Groups of 64 MMA rows, each (token, query head) of a
//          KV head's group: row r is token r / group, head r % group. Three groups up to D = 64, else two.
//          Keys in blocks of 128 (4 pages), 8 blocks a span.
//
// Grid     x: tile, the last (which have the most keys) first; y: KV head
// CTA      a warpgroup for each group of rows. The weights leave the scores where the second product wants
//          them, in registers. The next block's scores are multiplied ahead of this one's values, so that its
//          exponentials run under that product and under those of the other warpgroups, which start theirs in
//          turn (Turns).
//          the last warpgroup: its first warp streams blocks of keys and values through a ring of bulk
//          copies; with FP8 pages, all four of its warps widen a block of bytes into the ring.
//
// Barriers of keys and of values: full[stage]: the copies have landed (FP8: one arrival behind the widening
//          warps' barrier)     empty[stage]: the computing warps have read it
//          arrived[raw]: FP8's bytes have landed
//          named: 1 of the widening warps; 2 to 4: turns of the computing warpgroups; behind those, one of
//          each of them
// Ordering A computing warp arrives at `empty` after the wait for the product, which has then read the stage.
//          What warps write for wgmma (async proxy), widened pages and the queries, is made visible by
//          fence.proxy.async before they meet. Everything but parameters is read after the wait for the
//          predecessor. Blocks of keys and of values are widened one after the other: a block's keys are
//          waited for while the values before them are still in use.
// Resident No CTA waits for another.
//
// Bytes    a KV head's keys and values once per 192 / group tokens (D = 128: 128), from L2 but for the first
//          time.
// Shared   K and V of 3 stages of 128 keys (D = 64: 96 KB; D = 128: 2 stages), FP8's bytes, D / 2 floats
//          a thread of sums over spans, up to D = 64 the queries; one CTA a multiprocessor. Registers of a
//          computing thread: 160, of which 64 are scores, 32 weights and 32 a span's sums; D = 128: 232.
// Floor    4 D operations a score and one exponential: at D = 64 the exponentials (16 a cycle and
//          multiprocessor) take as long as the products (2,048 multiply-adds).
#include "backend/cuda/kernels/common/attention_parts.cuh"
#include "backend/cuda/kernels/ptx/wgmma.cuh"
#include "backend/cuda/kernels/sm90/attention.h"
#include "backend/cuda/kernels/sm90/attention_prefill_load.cuh"
#include "backend/cuda/runtime/shared_limits.h"

namespace moesaic::cuda {
namespace {

using namespace attention_prefill;

// A shift rises where a block's greatest score is more than so many binary orders above it. So it seldom
// does, and what was summed seldom follows. Weights up to 2^8 are as exact as those up to 1.
inline constexpr float kSlack = 8;

// The rows of this lane's warp: MMA row 16 warp + 8 h + lane / 4 is token (row / group), head (row % group).
template <int D>
struct PrefillRows {
  using Cta = PrefillCta<D>;
  uint32_t q[Cta::kSharesQueries ? 1 : D / 16][4];
  uint32_t queries;                // operand, where they are in shared memory
  int last[2];                     // position of the token
  float scores[kBlockTokens / 2];  // then weights in F32
  uint32_t weights[kBlockTokens / 16][4];
  float span[D / 2];
  Running of_span[2], of_last[2], of_total[2];  // sums of the span and of the one before: this lane's part
  float factor[2];                              // where the shift has risen: what the span is multiplied by
  bool risen = false;

  struct Place {
    int row;          // among the group's MMA rows
    int token, head;  // the token's number in the tile
    bool exists;
  };
  __device__ static Place place(const Attention& p, const RowTile& tile, int group, int h) {
    const int heads = p.heads / p.kv_heads, tokens = kGroupRows / heads;
    const int row = threadIdx.x % kGroupThreads / 32 * 16 + 8 * h + threadIdx.x % 32 / 4;
    const int token = group * tokens + row / heads;
    return {row, token, static_cast<int>(blockIdx.y) * heads + row % heads,
            row < tokens * heads && token < tile.count};
  }

  __device__ void load(const Attention& p, const RowTile& tile, int group, int lane, __nv_bfloat16* shared) {
    queries = wgmma_operand(smem_addr(shared));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Place at = place(p, tile, group, h);
      last[h] = tile.position + at.token;
      of_span[h] = of_last[h] = Running::nothing();
      of_total[h] = at.exists ? Running::sink(p.sinks[at.head]) : Running::nothing();
      const auto* from = reinterpret_cast<const uint32_t*>(
          p.q + (static_cast<int64_t>(tile.row + at.token) * p.heads + at.head) * D);
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t pair = at.exists ? from[step * 8 + i * 4 + lane % 4] : 0;
          if constexpr (Cta::kSharesQueries) {
            const int chunk = swizzled_chunk(2 * D, at.row, 2 * step + i);
            reinterpret_cast<uint32_t*>(shared + at.row * D + chunk)[lane % 4] = pair;
          } else {
            q[step][2 * i + h] = pair;
          }
        }
      }
    }
    if constexpr (Cta::kSharesQueries) {
      fence_proxy_async();
      warpgroup_barrier(2 + Cta::kGroups + group);
    }
#pragma unroll
    for (int i = 0; i < D / 2; ++i) span[i] = 0;
  }

  // keys, values: wgmma_operand() of the stage's.
  __device__ void start_scores(uint32_t keys) {
    constexpr int kWidth = D < 64 ? D : 64;
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      const int d = step * 16, at = d / kWidth * kBlockTokens * kWidth / 8 + d % kWidth / 8;
      if constexpr (Cta::kSharesQueries) {
        wgmma_from_shared<kWidth * 2>(scores, queries + d / 8, keys + at, step > 0);
      } else {
        Wgmma<kBlockTokens>::run<true, kWidth * 2>(scores, q[step], keys + at, step > 0);
      }
    }
    warpgroup_commit_batch();
  }
  __device__ void start_values(uint32_t values) {
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kBlockTokens / 16; ++step) {
      const int at = step / 2 * kPageTokens * D / 8 + step % 2 * 2;
      Wgmma<D>::template run<true, 64>(span, weights[step], values + at);
    }
    warpgroup_commit_batch();
  }
  // kPending: products that may stay in flight behind the one whose results are wanted.
  template <int kPending>
  __device__ void wait_for_scores() {
    warpgroup_wait<kPending>();
    warpgroup_fence_operand(scores);
  }
  __device__ void wait_for_values() {
    warpgroup_wait<0>();
    warpgroup_fence_operand(span);
    warpgroup_fence_operand(weights);
  }

  // Keys of block i that a row does not attend to: later ones, and those before its window.
  __device__ void mask_later(int i, int lane) {
#pragma unroll
    for (int at = 0; at < kBlockTokens / 2; ++at) {
      const int most = last[at % 4 / 2] - i * kBlockTokens - 2 * (lane % 4);
      if (at / 4 * 8 + at % 2 > most) scores[at] = -INFINITY;
    }
  }
  __device__ void mask_earlier(int i, int window, int lane) {
#pragma unroll
    for (int at = 0; at < kBlockTokens / 2; ++at) {
      const int before = last[at % 4 / 2] - window - i * kBlockTokens - 2 * (lane % 4);
      if (at / 4 * 8 + at % 2 <= before) scores[at] = -INFINITY;
    }
  }

  // Scores become weights, relative to the shift. The first loop has four chains, so that none waits for
  // itself.
  __device__ void softmax() {
    const float scale = score_scale(D);
    float top[2][2] = {{kNothing, kNothing}, {kNothing, kNothing}};
#pragma unroll
    for (int i = 0; i < kBlockTokens / 2; ++i)
      top[i % 4 / 2][i % 2] = fmaxf(top[i % 4 / 2][i % 2], scores[i]);
    bool stays = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h][0] = __fmul_rn(fmaxf(top[h][0], top[h][1]), scale);
      stays &= top[h][0] <= of_span[h].max + kSlack;
    }
    if (!__all_sync(0xFFFFFFFFu, stays)) {
      risen = true;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float all = quad_max(top[h][0]), before = of_span[h].max;
        if (all > before + kSlack) of_span[h].max = all;
        factor[h] = exp2_fast(before - of_span[h].max);
        of_span[h].sum *= factor[h];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kBlockTokens / 4; ++i) {
        float& x = scores[i / 2 * 4 + 2 * h + i % 2];
        x = exp2_fast(fmaf(x, scale, -of_span[h].max));
        of_span[h].sum += x;
      }
    }
  }
  __device__ void round_weights() {
#pragma unroll
    for (int i = 0; i < kBlockTokens / 4; ++i)
      weights[i / 4][i % 4] = pack_bf16(scores[2 * i], scores[2 * i + 1]);
  }

  __device__ void begin_span() {
#pragma unroll
    for (int h = 0; h < 2; ++h) of_last[h] = of_span[h], of_span[h].sum = 0;
  }
  __device__ void follow_shift() {
    if (!risen) return;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) span[i] *= factor[i % 4 / 2];
    risen = false;
  }
  // The span that is of_last goes to the total, whose values are Cta::kComputing floats apart.
  __device__ void join_span(float* total) {
    Join by[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) by[h] = join(of_total[h], {of_last[h].max, quad_sum(of_last[h].sum)});
#pragma unroll
    for (int i = 0; i < D / 2; ++i) {
      float& t = total[i * Cta::kComputing];
      t = joined(by[i % 4 / 2], t, span[i]);
      span[i] = 0;
    }
    risen = false;
  }

  __device__ void write(const Attention& p, const RowTile& tile, const float* total, int group,
                        int lane) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Place at = place(p, tile, group, h);
      if (!at.exists) continue;
      const int row = tile.row + at.token, c = lane % 4;
      const ActivationRow tiled(p.out_tile, p.heads * D, row);
      const float scale = of_total[h].inverse();
      const auto pair = [&](int n) {  // columns 8 n + 2 c of the head
        const float lo = total[(4 * n + 2 * h) * Cta::kComputing] * scale;
        const float hi = total[(4 * n + 2 * h + 1) * Cta::kComputing] * scale;
        return p.bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
      };
#pragma unroll
      for (int part = 0; part < D / 32; ++part) {
        const uint4 chunk = {pair(4 * part), pair(4 * part + 1), pair(4 * part + 2), pair(4 * part + 3)};
        const int column = at.head * D + 32 * part;
        if (p.out_tile > 0) {
          static_cast<uint4*>(p.out)[tiled.chunk(column / 32, c) / 8] = chunk;
          continue;
        }
        auto* out =
            static_cast<uint32_t*>(p.out) + (static_cast<int64_t>(row) * p.heads * D + column) / 2 + c;
        out[0] = chunk.x, out[4] = chunk.y, out[8] = chunk.z, out[12] = chunk.w;
      }
    }
  }
};

// The computing warpgroups give the tensor cores their products in turn, at every block of the tile: one's
// products run under the others' exponentials.
template <int kGroups>
struct Turns {
  int group;
  __device__ void open() const {
    if (group == kGroups - 1) named_barrier_arrive<2 * kGroupThreads>(2);
  }
  __device__ void take() const { named_barrier_wait<2 * kGroupThreads>(2 + group); }
  // last: nobody waits for another.
  __device__ void pass(bool last) const {
    if (!last || group < kGroups - 1) named_barrier_arrive<2 * kGroupThreads>(2 + (group + 1) % kGroups);
  }
};

// A warpgroup's work, block by block.
template <int D, bool kFp8>
struct PrefillBlocks {
  using S = PrefillShared<D, kFp8>;
  using Ring = typename S::Ring;
  S& s;
  const Attention& p;
  BlockRange blocks, mine;  // the tile's, and those of this warpgroup's rows
  int lowest, highest;      // positions of these rows
  int lane;
  Turns<PrefillCta<D>::kGroups> turns;
  uint32_t keys, values;  // operands of the first stage
  float* total;
  PrefillRows<D> rows;
  static constexpr int kStage = kBlockTokens * D * 2 / 16;  // between stages

  __device__ StagePosition<S::kStages> slot(int i) const {
    return StagePosition<S::kStages>(i - blocks.from);
  }
  __device__ void wait(Ring& ring, int i) const { mbarrier_wait(ring.full + slot(i).stage, slot(i).phase); }
  __device__ void release(Ring& ring, int i) const {
    if (arrives(lane == 0)) mbarrier_arrive(ring.empty + slot(i).stage);
  }
  __device__ void skip(int i) const {
    wait(s.of_k, i), wait(s.of_v, i);
    turns.take(), turns.pass(i == blocks.to);
    release(s.of_k, i), release(s.of_v, i);
  }
  __device__ void start_scores(int i) { rows.start_scores(keys + slot(i).stage * kStage); }
  // Behind all blocks before i, which has weights.
  __device__ void start_values(int i) {
    if (i % kSpanBlocks == 0) {
      rows.join_span(total);
    } else {
      rows.follow_shift();
    }
    rows.start_values(values + slot(i).stage * kStage);
  }
  // kPending: products that may stay in flight behind these. Block i's scores become weights in F32.
  template <int kPending>
  __device__ void finish_scores(int i) {
    rows.template wait_for_scores<kPending>();
    release(s.of_k, i);
    if ((i + 1) * kBlockTokens - 1 > lowest) rows.mask_later(i, lane);
    if (p.window > 0 && i * kBlockTokens <= highest - p.window) rows.mask_earlier(i, p.window, lane);
    if (i % kSpanBlocks == 0) rows.begin_span();
    rows.softmax();
  }
  // Block mine.from - 1: there are none.
  __device__ void finish_values(int i) {
    rows.wait_for_values();
    if (i >= mine.from) release(s.of_v, i);
  }

  // The next block's scores are multiplied ahead of this one's values, and become weights while those are.
  // The wait for values stands behind that for a stage, or the compiler would have exponentials wait for it,
  // too.
  __device__ void run() {
    int i = mine.from;
    wait(s.of_k, i);
    turns.take();
    start_scores(i);
    turns.pass(i == blocks.to);
    finish_scores<0>(i);
    for (; i < mine.to; ++i) {
      wait(s.of_v, i), wait(s.of_k, i + 1);
      finish_values(i - 1);
      rows.round_weights();
      turns.take();
      start_scores(i + 1);
      start_values(i);
      turns.pass(i + 1 == blocks.to);
      finish_scores<1>(i + 1);
    }
    wait(s.of_v, i);
    finish_values(i - 1);
    rows.round_weights();
    start_values(i);
    finish_values(i);
    rows.begin_span();
    rows.join_span(total);
  }
};

template <int D, bool kFp8>
__device__ void compute_blocks(PrefillShared<D, kFp8>& s, const Attention& p, const RowTile& tile,
                               BlockRange blocks, int group, int lane) {
  using Cta = PrefillCta<D>;
  const int tokens = kGroupRows / (p.heads / p.kv_heads), first_token = group * tokens;
  const int count = min(tokens, tile.count - first_token), lowest = tile.position + first_token;
  PrefillBlocks<D, kFp8> b{.s = s,
                           .p = p,
                           .blocks = blocks,
                           .mine = blocks_of(p, tile, first_token, count),
                           .lowest = lowest,
                           .highest = lowest + count - 1,
                           .lane = lane,
                           .turns = {.group = group},
                           .keys = wgmma_operand(smem_addr(s.k[0])),
                           .values = wgmma_operand(smem_addr(s.v[0])),
                           .total = &s.total[0][threadIdx.x]};
  b.turns.open();
  b.rows.load(p, tile, group, lane, s.q[Cta::kSharesQueries ? group : 0]);
#pragma unroll
  for (int i = 0; i < D / 2; ++i) b.total[i * Cta::kComputing] = 0;
  for (int i = blocks.from; i < b.mine.from || (count <= 0 && i <= blocks.to); ++i) b.skip(i);
  if (count <= 0) return;
  b.run();
  for (int i = b.mine.to + 1; i <= blocks.to; ++i) b.skip(i);
  b.rows.write(p, tile, b.total, group, lane);
}

template <int D, bool kFp8>
__global__ void __launch_bounds__(PrefillCta<D>::kThreads, 1) attention_prefill_kernel(const Attention p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  using S = PrefillShared<D, kFp8>;
  using Cta = PrefillCta<D>;
  auto& s = *reinterpret_cast<S*>(memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (auto* ring : {&s.of_k, &s.of_v}) {
      for (int i = 0; i < S::kStages; ++i)
        mbarrier_init(ring->full + i, 1), mbarrier_init(ring->empty + i, Cta::kGroups * 4 * kWarpArrivals);
    }
    for (int i = 0; i < S::kRaw; ++i) mbarrier_init(s.arrived + i, 1);
    fence_mbarrier_init();
  }
  launch_dependents();
  wait_for_predecessor();
  __syncthreads();
  // The last tiles of a prompt have the most keys: they go first.
  const RowTile tile = p.tiles[gridDim.x - 1 - blockIdx.x];
  const BlockRange blocks = blocks_of(p, tile, 0, tile.count);
  if (warp >= Cta::kGroups * 4) {
    warpgroup_reg_dealloc<Cta::kLoaderRegisters>();
    load_blocks(s, p, tile, blocks, static_cast<int>(threadIdx.x) - Cta::kComputing);
  } else {
    warpgroup_reg_alloc<Cta::kComputeRegisters>();
    compute_blocks(s, p, tile, blocks, warp / 4, lane);
  }
}

template <int D, bool kFp8>
Status run(const Attention& p, cudaStream_t stream) {
  const auto kernel = attention_prefill_kernel<D, kFp8>;
  constexpr size_t kShared = sizeof(PrefillShared<D, kFp8>);
  static_assert(kShared <= kHopperShared);
  static OncePerDevice prepared;
  const Status status = prepared.run([&] { return set_attributes(kernel, {.max_shared = kShared}); });
  if (!status.ok()) return status;
  return launch(kernel, dim3(p.tile_count, p.kv_heads), dim3(PrefillCta<D>::kThreads), kShared, stream, p);
}

}  // namespace

Status attend_prefill(const Attention& p, cudaStream_t stream) {
  return for_shape(p, [&](auto d, auto fp8) { return run<d, fp8>(p, stream); });
}

}  // namespace moesaic::cuda
