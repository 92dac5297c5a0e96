// y = W x for dense matrices and up to 32 tokens: bound by the bytes of the weights.
//
// Maths    y[token, row] = factor * sum_k W[row, k] x[token, k], x = norm(input) of up to 8 rows if
//          wanted; then the epilogue: Store (+ bias, + residual) or Qkv (bias, RoPE, append).
// Shapes   weights in matrix.h's weight tiles of 32 rows and blocks of 32 columns; x [tokens, cols] 16 bits.
//          task: a weight tile, or half of one where that evens out the last round
//
// Grid     clusters of 2 (of more than 16 tokens 4) CTAs, one a multiprocessor; cluster i takes
//          tasks i, i + clusters, .. Each CTA sums its part of the contraction.
// CTA      copier, one warp: the part's weights, stage by stage, into a ring in shared memory
//          multipliers, two groups of 8 (or 4) warps: take the stages in turn, a stage's blocks among the
//          warps
//          finishers, one warp for every 8 tokens and sum buffer: add up the multipliers' sums. The CTAs
//          of a cluster take turns in finishing a task with the others' sums, which come by st.async
//
// Barriers full[stage]: 32 lanes' cp.async and one bulk copy     free[stage]: one group has read it
//          summed, empty[buffer]: the multipliers' sums are there; the finishers have read them
//          received[finisher]: the other CTAs' sums have come (bytes)     started: the predecessor has
//          ended
//          landed: the rows of x, where they are more than 8
// Ordering Weights are loaded before any kernel runs: the ring fills before the predecessor has ended. x,
//          the residual and the cache are touched only after the wait. A CTA's place for another's sums
//          is free when it is written: see finish_tasks(). Remote stores land in a CTA that has not
//          ended, since it waits for them; that it has started is what the cluster's barrier says.
// Resident The CTAs of a cluster are scheduled together; clusters do not wait for each other.
//
// Before the predecessor has ended only a few copies are in flight: with memory saturated, the few small
// reads that the predecessor waits for would come late. The ring is large, so that little is left to copy
// afterwards.
//
// Bytes    the weights once; activations once a CTA, from L2. Shared memory: TokenConfig, more than half
//          of a multiprocessor's, so that each CTA has one for itself.
// Floor    bytes / bandwidth. QKV of gpt-oss in BF16, 29.5 MB: 6.7 us on an H200.
// A token's sums have one order for up to 8 tokens, one for 9 to 16, and one for more.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/kernels/common/word_sender.cuh"
#include "backend/cuda/kernels/sm90/dense_decode.h"
#include "backend/cuda/kernels/sm90/dense_decode_copy.cuh"
#include "backend/cuda/runtime/shared_limits.h"

namespace moesaic::cuda::sm90 {
namespace {

// ---- multiplying ----

// The warp's blocks of one task. The warp's group has every kGroups-th stage. x: shared memory addresses of
// this lane's tokens at the first of its columns. rehearsal: multiplies one stage of whatever is in shared
// memory, so that the code is loaded early.
template <class Source, int kTiles>
__device__ __forceinline__ void multiply(const RingAddress& ring, const DenseTask& task, int blocks,
                                         int stages, RingCursor& cursor, const uint32_t (&x)[kTiles],
                                         DenseSums<Source, kTiles>& sums, bool rehearsal) {
  using S = RingStage<Source>;
  using T = TokenConfig<kTiles>;
  const int warp = rehearsal ? 0 : threadIdx.x / 32, lane = threadIdx.x % 32;
  const int step = task.stage_blocks<Source>();
  const auto add = [&]<bool kWhole>(uint32_t stage, int first, int i) {
    Source w;
    read<kWhole>(w, stage + i * (Source::kBlockBytes / (kWhole ? 1 : 2)) + lane * 16,
                 stage + S::kScalesAt + i * Source::kScaleBytes + lane / 4 * (Source::kScaleBytes / 8),
                 task.half);
    uint4 columns[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) columns[t] = ld_shared<uint4>(x[t] + (first + i) * kBlock * 2);
    sums.template add<kWhole>(w, columns);
  };
#pragma unroll 1
  for (int first = 0; first < blocks; first += step, cursor.next(stages)) {
    if (cursor.stage % T::kGroups != warp / T::kGroupWarps) continue;
    if (!rehearsal) mbarrier_wait(ring.full + cursor.stage * 8, cursor.phase);
    const uint32_t stage = ring.data + cursor.stage * S::kBytes;
    const int count = min(step, blocks - first), i = warp % T::kGroupWarps;
    // Not unrolled: what code there is comes slowly the first time.
    if (task.half < 0) {
#pragma unroll 1
      for (int j = i; j < count; j += T::kGroupWarps) add.template operator()<true>(stage, first, j);
    } else {
#pragma unroll 1
      for (int j = i; j < count; j += T::kGroupWarps) add.template operator()<false>(stage, first, j);
    }
    if (rehearsal) break;
    __syncwarp();
    if (arrives(lane == 0)) mbarrier_arrive(ring.free + cursor.stage * 8);
  }
}

// ---- epilogue of a rank ----

template <class Epilogue>
inline constexpr bool kSends = std::is_same_v<Epilogue, SentStore>;
struct SentStoreReady {
  StoreReady store;
  uint32_t epoch;
};
__device__ inline SentStoreReady prepare(const SentStore& e, int weight_tile, int pair, int out_row, int) {
  return {prepare(static_cast<const Store&>(e), weight_tile, pair, out_row, 0), epoch_of(e.sender)};
}
__device__ inline void finish(const SentStore& e, const SentStoreReady& ready, int weight_tile, int pair,
                              int out_row, float v0, float v1) {
  finish(e, ready.store, weight_tile, pair, out_row, v0, v1);
  const int row = weight_tile * kWeightTileRows + pair / 8 * 16 + pair % 8;
  const float v[2] = {v0, v1};
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (row + 8 * h < e.rows)
      send_word(e.sender, ready.epoch, out_row, row + 8 * h,
                ready.store.before[h] + (v[h] + ready.store.bias[h]));
}

// ---- sums ----

// The n-th task of a cluster.
template <class T>
struct TileIndex {
  static constexpr int kBuffers = T::kBuffers;
  int n = 0;
  __device__ int owner() const { return n / kBuffers % T::kRanks; }
  __device__ int buffer() const { return n % kBuffers; }
  __device__ int phase() const { return n / kBuffers & 1; }
};

// tokens: of a finisher's 8.
__device__ inline void expect_partials(uint64_t* received, int ranks, int tokens) {
  const int float4s = tokens <= 0 ? 0 : tokens <= 4 ? 1 : 2;
  mbarrier_arrive_expect_tx(received, (ranks - 1) * 32 * float4s * static_cast<int>(sizeof(float4)));
}

// Stores a multiplying warp's sums in sums [kBuffers][kWarps][tokens][kSumStride].
template <int kTiles, class Sums>
__device__ void hand_over(DenseShared<kTiles>& s, uint32_t sums, const TileIndex<TokenConfig<kTiles>>& place,
                          const DenseTask& task, int tokens, const Sums& sum, bool rehearsal) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int mine = (place.buffer() * TokenConfig<kTiles>::kWarps + warp) * tokens + 2 * c;
  const uint32_t to = sums + (mine * kSumStride + max(task.half, 0) * 16 + g) * sizeof(float);
  if (!rehearsal) mbarrier_wait(&s.empty[place.buffer()], place.phase() ^ 1);
#pragma unroll
  for (int j = 0; j < 2 * kTiles; ++j) {
    const int t = j / 2, i = j % 2;
    if (kTileTokens * t + 2 * c + i >= tokens || rehearsal) break;
    const uint32_t at = to + (kTileTokens * t + i) * kSumStride * sizeof(float);
    st_shared(at, sum.get(0, t, i)), st_shared(at + 32, sum.get(0, t, i + 2));
    if (task.half < 0) st_shared(at + 64, sum.get(1, t, i)), st_shared(at + 96, sum.get(1, t, i + 2));
  }
  __syncwarp();
  if (arrives(lane == 0) && !rehearsal) mbarrier_arrive(&s.summed[place.buffer()]);
}

// This CTA's sums of tokens [token, token + 4) of `tokens`, in the lane's row.
template <int kWarps>
__device__ inline float4 add_warps(const float* sums, int tokens, int token, int lane) {
  float v[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (token + i >= tokens) break;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v[i] += sums[(w * tokens + token + i) * kSumStride + lane];
  }
  return {v[0], v[1], v[2], v[3]};
}
__device__ inline void add(float4& a, const float4& b) { a = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// Each lane has one row's values of two tokens. Afterwards it has rows l and l + 8 of one token: lanes of the
// lower rows of the first, lanes of the upper rows of the second.
__device__ inline float2 pair_up(float first, float second, int lane) {
  const bool upper = lane & 8;
  const float other = __shfl_xor_sync(0xFFFFFFFFu, upper ? first : second, 8);
  return upper ? make_float2(other, second) : make_float2(first, other);
}

// A finisher: it has every kBuffers-th task, and 8 tokens. The CTAs of a cluster own tasks in turn; the
// others send the owner their partial sums, for which it has one place for each of them. That place is free
// when a CTA writes it: a CTA sends for a task only after it has finished the last task of its own. For that
// one it needed the partial sums of the owner, which sent them after it had finished the last task that used
// the place.
template <int kTiles, class Epilogue>
__device__ void finish_tasks(DenseShared<kTiles>& s, const float* sums, const GemmParams& p,
                             const TileSchedule& cut, const Epilogue& epilogue,
                             const KSlice<TokenConfig<kTiles>::kRanks>& part, int finisher, int lane) {
  constexpr int kRanks = TokenConfig<kTiles>::kRanks, kBuffers = TokenConfig<kTiles>::kBuffers;
  const int tile = finisher % kTiles, base = kTileTokens * tile;
  const int pair = lane / 16 * 8 + lane % 8, token = base + lane / 8 % 2;  // to be finished; token + 2 k too
  float4(&partials)[kRanks][kPartials][32] = s.partials[finisher];
  uint64_t* received = &s.received[finisher];
  int phase = 0;
  TileIndex<TokenConfig<kTiles>> place{finisher / kTiles};
  for (int index = part.cluster + place.n * part.clusters; index < cut.tasks;
       index += kBuffers * part.clusters, place.n += kBuffers) {
    const DenseTask task(cut, index);
    const int owner = place.owner(), weight_tile = task.weight_tile;
    decltype(prepare(epilogue, 0, 0, 0, 0)) ready[kTileTokens / 2] = {};
    if (owner == part.rank) {
#pragma unroll
      for (int k = 0; k < kTileTokens / 2; ++k)
        if (token + 2 * k < p.tokens) ready[k] = prepare(epilogue, weight_tile, pair, token + 2 * k, 0);
    }
    mbarrier_wait(&s.summed[place.buffer()], place.phase());
    float4 v[kPartials];
#pragma unroll
    for (int k = 0; k < kPartials; ++k)
      v[k] = add_warps<TokenConfig<kTiles>::kWarps>(
          sums + place.buffer() * TokenConfig<kTiles>::kWarps * p.tokens * kSumStride, p.tokens, base + 4 * k,
          lane);
    __syncwarp();
    if (arrives(lane == 0)) mbarrier_arrive(&s.empty[place.buffer()]);
    if (owner != part.rank) {
#pragma unroll
      for (int k = 0; k < kPartials; ++k)
        if (base + 4 * k < p.tokens)
          st_async(mapa(&partials[part.rank][k][lane], owner), v[k], mapa(received, owner));
      continue;
    }
    mbarrier_wait(received, phase);
    phase ^= 1;
#pragma unroll
    for (int k = 0; k < kPartials; ++k) {
#pragma unroll
      for (int r = 0; r < kRanks; ++r)
        if (r != part.rank && base + 4 * k < p.tokens) add(v[k], partials[r][k][lane]);
    }
    __syncwarp();
    if (lane == 0) expect_partials(received, kRanks, p.tokens - base);
#pragma unroll
    for (int k = 0; k < kTileTokens / 2; ++k) {
      if (base + 2 * k >= p.tokens) break;
      const float4 four = v[k / 2];
      const float2 both = k % 2 == 0 ? pair_up(four.x, four.y, lane) : pair_up(four.z, four.w, lane);
      if (token + 2 * k < p.tokens && task.has(pair / 8))
        finish(epilogue, ready[k], weight_tile, pair, token + 2 * k, both.x * p.factor, both.y * p.factor);
    }
  }
}

template <int kTiles>
__device__ void init_shared(DenseShared<kTiles>& s, const TileSchedule& cut, int tokens) {
  for (int i = 0; i < cut.stages; ++i)
    mbarrier_init(&s.full[i], kCopyArrivals),
        mbarrier_init(&s.free[i], TokenConfig<kTiles>::kGroupWarps * kWarpArrivals);
  for (int b = 0; b < 2; ++b) {
    mbarrier_init(&s.summed[b], TokenConfig<kTiles>::kWarps * kWarpArrivals);
    mbarrier_init(&s.empty[b], kTiles * kWarpArrivals);
  }
  for (uint64_t& received : s.received) mbarrier_init(&received, 1);
  mbarrier_init(&s.started, 1), mbarrier_init(&s.landed, 1);
  fence_mbarrier_init();
  for (int f = 0; f < TokenConfig<kTiles>::kFinishers; ++f)
    expect_partials(&s.received[f], TokenConfig<kTiles>::kRanks, tokens - kTileTokens * (f % kTiles));
}

template <class Source, int kTiles, class Epilogue>
__global__ void __launch_bounds__(TokenConfig<kTiles>::kThreads) __maxnreg__(kTiles == 1 ? 80 : 128)
    dense_decode_kernel(const GemmParams p, const TileSchedule cut, const Norm norm,
                        const Epilogue epilogue) {
  extern __shared__ __align__(128) uint8_t dynamic[];  // ring, rows, sums
  __shared__ DenseShared<kTiles> s;
  using T = TokenConfig<kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const KSlice<T::kRanks> part(p.blocks);
  constexpr auto kStageBytes = RingStage<Source>::kBytes;
  const int row_bytes = row_stride(p.blocks, T::kRanks);
  uint8_t* rows = dynamic + cut.stages * kStageBytes;
  auto* sums = reinterpret_cast<float*>(rows + p.tokens * row_bytes);
  if (warp == T::kCopier) {
    if (lane == 0) init_shared(s, cut, p.tokens);
    __syncwarp();
    cluster_arrive_relaxed();
    if (!kSends<Epilogue>) launch_dependents();
    copy_tasks<Source>(s, dynamic, p, cut, part);
    __syncwarp();
    cluster_wait();
    return;
  }
  cluster_arrive_relaxed();
  // The last finisher goes once through the multiplying warps' code, on whatever lies in shared memory and
  // without a trace, so that it is there when they need it: it comes late once the weights are in flight.
  // Widening eight bits is code enough for that to pay.
  const bool rehearsal =
      kPrefetchesCode && kTiles == 1 && Source::kScaled && warp == T::kFinisher + T::kFinishers - 1;
  constexpr int kMultipliers = T::kMultipliers;
  const int first = part.first * kBlock, end = first + part.blocks * kBlock;
  if (!kSends<Epilogue>) launch_dependents();
  if (warp < T::kFinisher) {
    const RowNorm<kMultipliers> row_norm(norm);
    cluster_wait();
    wait_for_predecessor();
    if (norm.x != nullptr) {
      row_norm.run(norm, &s.scratch[0][0], rows, row_bytes, first, end);
    } else {
      copy_rows<kMultipliers, (kTiles > 1)>(p, rows, row_bytes, first, end, &s.landed);
    }
    sync_multipliers<kMultipliers>();
  } else {
    cluster_wait();
  }
  if (warp < T::kFinisher || rehearsal) {
    // Columns of the MMA beyond the tokens are never looked at.
    uint32_t x[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      x[t] =
          kept(smem_addr(rows) + min(kTileTokens * t + lane / 4, p.tokens - 1) * row_bytes + lane % 4 * 16);
    const RingAddress ring(s, dynamic);
    const uint32_t sums_at = kept(smem_addr(sums));
    RingCursor cursor;
    TileIndex<TokenConfig<kTiles>> place;
#pragma unroll 1
    for (int index = part.cluster; index < cut.tasks; index += part.clusters, ++place.n) {
      const DenseTask task(cut, index);
      DenseSums<Source, kTiles> sum;
      multiply(ring, task, part.blocks, cut.stages, cursor, x, sum, rehearsal);
      hand_over(s, sums_at, place, task, p.tokens, sum, rehearsal);
      if (rehearsal) break;
    }
  }
  if (warp < T::kFinisher) return;
  wait_for_predecessor();
  if (kSends<Epilogue>) launch_dependents();
  if (warp == T::kFinisher && lane == 0) mbarrier_arrive(&s.started);
  finish_tasks(s, sums, p, cut, epilogue, part, warp - T::kFinisher, lane);
}

// ---- launcher ----

// Besides the ring.
template <class T>
size_t shared_rest(int64_t cols, int tokens) {
  return tokens * (row_stride(static_cast<int>(cols / kBlock), T::kRanks) +
                   sizeof(float) * T::kBuffers * T::kWarps * kSumStride);
}
template <class Source, class T>
int stages_for(int64_t cols, int tokens) {
  const int64_t room = T::kMost - static_cast<int64_t>(shared_rest<T>(cols, tokens));
  return static_cast<int>(std::clamp<int64_t>(room / RingStage<Source>::kBytes, 0, T::kStages)) / T::kGroups *
         T::kGroups;
}

// Clusters that run at a time, one CTA a multiprocessor; at least 1.
int clusters_at_a_time(const void* kernel, int ranks, int threads, int least) {
  cudaLaunchAttribute attribute = cluster_attribute(ranks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ranks), config.blockDim = dim3(threads), config.dynamicSmemBytes = least;
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  const bool known = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess;
  return known && clusters > 0 ? clusters : 1;
}

// On the current device; gives its clusters_at_a_time().
template <class T, typename... Params>
Result<int> prepare_kernel(void (*kernel)(Params...)) {
  const Status status = set_attributes(kernel, {.max_shared = T::kMost, .prefer_shared = true});
  if (!status.ok()) return status;
  return clusters_at_a_time(reinterpret_cast<const void*>(kernel), T::kRanks, T::kThreads, T::kLeast);
}

TileSchedule schedule_of(const Matrix& w, int clusters, int stages) {
  const auto weight_tiles = static_cast<int>(w.weight_tiles), first = static_cast<int>(w.first_weight_tile);
  const int rest = weight_tiles % clusters, whole = 2 * rest <= clusters ? weight_tiles - rest : weight_tiles;
  return {stages,       whole, whole + 2 * (weight_tiles - whole),
          weight_tiles, first, whole == clusters ? 0 : whole};
}

template <class Source, int kTiles, class Epilogue>
Status run_tiles(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& epilogue,
                 cudaStream_t stream) {
  using T = TokenConfig<kTiles>;
  static_assert(sizeof(DenseShared<kTiles>) + T::kMost <= kHopperShared);
  const auto kernel = dense_decode_kernel<Source, kTiles, Epilogue>;
  static PerDevice<int> prepared;
  const Result<int> most_clusters = prepared.get([&] { return prepare_kernel<T>(kernel); });
  if (!most_clusters.ok()) return most_clusters.status();
  const int weight_tiles = static_cast<int>(w.weight_tiles),
            clusters = std::min(weight_tiles, most_clusters.value());
  const TileSchedule cut = schedule_of(w, clusters, stages_for<Source, T>(w.cols, x.tokens));
  const size_t shared = cut.stages * RingStage<Source>::kBytes + shared_rest<T>(w.cols, x.tokens);
  const GemmParams p{.data = w.data.as<uint8_t>(),
                     .scales = w.scales.as<uint8_t>(),
                     .weight_tiles = weight_tiles,
                     .blocks = static_cast<int>(w.cols / kBlock),
                     .x = static_cast<const uint16_t*>(x.x),
                     .rows = nullptr,
                     .cols = static_cast<int>(w.cols),
                     .tokens = x.tokens,
                     .factor = x.factor * Source::kFactor,
                     .work_tiles = nullptr,
                     .work_tile_count = nullptr};
  return launch_clusters(T::kRanks, kernel, dim3(T::kRanks * clusters), dim3(T::kThreads),
                         std::max<size_t>(shared, T::kLeast), stream, p, cut, norm, epilogue);
}

template <class Source, class Epilogue>
Status run(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& epilogue,
           cudaStream_t stream) {
  if (kSends<Epilogue> || x.tokens <= 8) return run_tiles<Source, 1>(w, x, norm, epilogue, stream);
  if constexpr (!kSends<Epilogue>) {
    if (x.tokens <= 16) return run_tiles<Source, 2>(w, x, norm, epilogue, stream);
    return run_tiles<Source, 4>(w, x, norm, epilogue, stream);
  }
}

template <class Epilogue>
Status run_kind(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& out,
                cudaStream_t stream) {
  const auto none = [&] { return no_kernel("dense_decode", w, x.tokens); };
  const auto of_source = [&]<class Source>() {
    if constexpr (Source::kBlockBytes < kWeightTileRows * kBlock)
      return none();
    else
      return run<Source>(w, x, norm, out, stream);
  };
  return with_source(w.kind, of_source, none);
}

}  // namespace

bool dense_decode_fits(int64_t cols, int tokens) {
  const int stages = tokens <= 8    ? stages_for<Q8Source, TokenConfig<1>>(cols, tokens)
                     : tokens <= 16 ? stages_for<Q8Source, TokenConfig<2>>(cols, tokens)
                     : tokens <= 32 ? stages_for<Q8Source, TokenConfig<4>>(cols, tokens)
                                    : 0;
  return stages >= 2;
}
static_assert(kMostNormedCols == kNormed);

template <class Epilogue>
Status dense_decode(const Matrix& w, const Activations& x, const Epilogue& out, cudaStream_t stream) {
  return run_kind(w, x, Norm{}, out, stream);
}
template <class Epilogue>
Status dense_decode(const Matrix& w, const Norm& norm, const Epilogue& out, cudaStream_t stream) {
  return run_kind(w, {.factor = 1.0f / norm.factor, .tokens = norm.rows}, norm, out, stream);
}
template Status dense_decode(const Matrix&, const Activations&, const Store&, cudaStream_t);
template Status dense_decode(const Matrix&, const Activations&, const Qkv&, cudaStream_t);
template Status dense_decode(const Matrix&, const Activations&, const SentStore&, cudaStream_t);
template Status dense_decode(const Matrix&, const Norm&, const Store&, cudaStream_t);
template Status dense_decode(const Matrix&, const Norm&, const Qkv&, cudaStream_t);

}  // namespace moesaic::cuda::sm90
