// Matrix product for few tokens, bound by the bytes of the weights.
//
//   task     a unit of matrix.h, 32 rows, or half of one where that evens out the last round
//   cluster  thread blocks that share their tasks: each sums its part of the contraction
//   block    one warp copies the part's weights, stage by stage, into a ring in shared memory. Two groups of
//            warps take the stages in turn and multiply, a stage's blocks among the warps. One warp for every
//            8 tokens and each of the buffers that tasks use in turn adds up their sums. The thread blocks
//            take turns in finishing a task, with the others' sums, which come through the cluster's shared
//            memory
//
// The ring is on its way before the kernel waits for its predecessor: what launch and norm take is hidden
// behind it. It is filled calmly then: memory that is asked for all it can give answers late, and what the
// predecessor waits for are a few small reads. It is large, so that little is left to ask for afterwards.
// Bytes: the weights once; activations once a block, from L2. The order of a token's sums is the same for up
// to 8 tokens, and for all that are more.
//
// Floor: bytes / bandwidth. QKV of gpt-oss in BF16, 29.5 MB: 6.7 us on an H200.
#include <algorithm>

#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/sm90/dense_decode.h"
#include "backend/cuda/kernels/sm90/dense_decode_parts.cuh"

namespace moesaic::cuda::sm90a {
namespace {

constexpr int kMostStages = 16;
constexpr bool kRehearses = kWarpArrivals == 1;  // and so reads what others write: not for racecheck
constexpr int kSumStride = kUnit + 4;            // floats; neighbouring tokens in different banks

// What the number of tokens decides. kTiles: tiles of 8 tokens.
template <int kTiles>
struct Team {
  static constexpr int kGroups = 2, kGroupWarps = kTiles == 1 ? 8 : 4;  // that multiply
  static constexpr int kWarps = kGroups * kGroupWarps, kMultipliers = 32 * kWarps;
  static constexpr int kRanks = kTiles < 4 ? 2 : 4;    // thread blocks of a cluster
  static constexpr int kBuffers = kTiles < 4 ? 2 : 1;  // of sums
  static constexpr int kFinishers = kTiles * kBuffers, kFinisher = kWarps, kCopier = kWarps + kFinishers,
                       kThreads = (kCopier + 1) * 32;
  // Of shared memory. Two blocks of a launch that starts early would share a multiprocessor while others stay
  // empty (up to four were seen): each takes more than half of one's memory. A block of the attention has
  // room beside it.
  static constexpr int kLeast = 112 * 1024, kMost = (kTiles == 1 ? 182 : kTiles == 2 ? 216 : 208) * 1024;
  // More stages would leave no room for a block of the attention with all its slots.
  static constexpr int kStages = kTiles == 1 ? 8 : kMostStages;
};

// What a block's ring holds at a time: so many blocks of the contraction, or twice as many halves of them.
template <class Source>
struct Stage {
  static constexpr int kBlocks = 16384 / Source::kBlockBytes;
  static constexpr int kScalesAt = kBlocks * Source::kBlockBytes;
  static constexpr int kBytes = kScalesAt + 2 * kBlocks * Source::kScaleBytes;
};

// How a product is cut. Cluster i computes the tasks i, i + clusters, ..: first whole units, then, where this
// ends sooner, halves (MMA tiles) of the last units. Where that makes two tasks a cluster, the half comes
// first: its copies take longer to ask for, and the time before the predecessor has ended is there for it.
struct Cut {
  int stages;  // of a ring
  int whole, tasks;
  int units, first;  // the unit that comes first
  int halves;        // the first task that is a half: 0 or `whole`
};
struct Task {
  int unit, half;  // half: -1: both
  __device__ Task(const Cut& cut, int index) {
    const int h = index - cut.halves;
    const bool halved = static_cast<unsigned>(h) < static_cast<unsigned>(cut.tasks - cut.whole);
    unit = halved ? cut.whole + h / 2 : index < cut.whole ? index : index - cut.whole;
    half = halved ? h % 2 : -1;
    unit += cut.first;
    if (unit >= cut.units) unit -= cut.units;
  }
  __device__ bool has(int m) const { return half < 0 || half == m; }
  template <class Source>
  __device__ int stage_blocks() const {
    return (half < 0 ? 1 : 2) * Stage<Source>::kBlocks;
  }
};

// A thread block's place in the product: its cluster and, of the contraction, `blocks` blocks from `first`
// on.
template <int kRanks>
struct Part {
  int rank = blockIdx.x % kRanks;
  int cluster = blockIdx.x / kRanks, clusters = gridDim.x / kRanks;
  int first, blocks;
  __device__ explicit Part(int all) : first(all * rank / kRanks), blocks(all * (rank + 1) / kRanks - first) {}
};

// Lane l of a finisher sums row l of its 8 tokens, four in a float4.
constexpr int kShares = kTileTokens / 4;
template <int kTiles>
struct Shared {
  uint64_t full[kMostStages], free[kMostStages];  // of the ring
  uint64_t summed[2], empty[2];                   // this block's parts of a task: all there; read
  uint64_t received[Team<kTiles>::kFinishers];    // the other blocks' shares of a task
  uint64_t started;                               // the predecessor has ended
  uint64_t landed;                                // the rows, where they are many
  float4 share[Team<kTiles>::kFinishers][Team<kTiles>::kRanks][kShares][32];
  float scratch[kTileTokens][Team<kTiles>::kWarps];
};

// The ring, in shared memory.
struct RingAt {
  uint32_t data, full, free;
  template <int kTiles>
  __device__ RingAt(const Shared<kTiles>& s, const uint8_t* ring)
      : data(kept(smem_addr(ring))), full(kept(smem_addr(s.full))), free(kept(smem_addr(s.free))) {}
};

// The stage that comes next.
struct Turn {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// ---- copying, by one warp ----

// Halves of blocks lie apart: as bulk copies, of 512 bytes, one thread would take longer for them than their
// bytes do. Each lane arrives for its own copies, and the first one once more for the bulk copies.
constexpr int kCopyArrivals = 32 + 1;
template <class Source>
__device__ void copy_stage(const Task& task, uint8_t* to, const uint8_t* data, const uint8_t* scales,
                           int count, uint64_t* full, uint64_t policy) {
  constexpr int kHalf = Source::kBlockBytes / 2;
  const bool half = task.half >= 0;
  const int lane = threadIdx.x % 32, bulk = half ? 0 : count * Source::kBlockBytes;
  if (half) {
    data += task.half * kHalf;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int at = lane * 16; at < kHalf; at += 512)
        copy_async(to + i * kHalf + at, data + i * Source::kBlockBytes + at, policy);
    }
    copy_async_arrive(full);
  }
  if (lane > 0) return;
  mbar_expect(full, bulk + count * Source::kScaleBytes);
  if (!half) {
    mbar_arrive(full, kCopyArrivals - 1);
    bulk_copy(to, data, bulk, full, policy);
  }
  if (Source::kScaled)
    bulk_copy(to + Stage<Source>::kScalesAt, scales, count * Source::kScaleBytes, full, policy);
}

constexpr int kCalm = 2;  // stages on their way before the predecessor has ended

template <class Source, int kTiles>
__device__ void copy_tasks(Shared<kTiles>& s, uint8_t* ring, const GemmParams& p, const Cut& cut,
                           const Part<Team<kTiles>::kRanks>& part) {
  const uint64_t policy = evict_first_policy();
  Turn turn, landed;
  bool calm = true;
  int on_way = 0;
  for (int index = part.cluster; index < cut.tasks; index += part.clusters) {
    const Task task(cut, index);
    const int64_t at = static_cast<int64_t>(task.unit) * p.blocks + part.first;
    const uint8_t *data = p.data + at * Source::kBlockBytes, *scales = p.scales + at * Source::kScaleBytes;
    const int step = task.stage_blocks<Source>();
    for (int b = 0; b < part.blocks; b += step, turn.next(cut.stages), ++on_way) {
      while (calm && on_way >= kCalm) {
        if (__any_sync(0xFFFFFFFFu, mbar_test(&s.full[landed.stage], landed.phase))) {
          landed.next(cut.stages), --on_way;
        } else {
          calm = __any_sync(0xFFFFFFFFu, !mbar_test(&s.started, 0));
        }
      }
      mbar_wait(&s.free[turn.stage], turn.phase ^ 1);
      copy_stage<Source>(task, ring + turn.stage * Stage<Source>::kBytes, data + b * Source::kBlockBytes,
                         scales + b * Source::kScaleBytes, min(step, part.blocks - b), &s.full[turn.stage],
                         policy);
    }
  }
}

// ---- multiplying ----

// The warp's blocks of one task: its group has every kGroups-th stage, and so always the same places of the
// ring. x: where the rows of this lane's tokens begin at the part, from its columns of a block on. rehearsal:
// one stage, whatever lies there.
template <class Source, int kTiles>
__device__ __forceinline__ void multiply(const RingAt& ring, const Task& task, int blocks, int stages,
                                         Turn& turn, const uint32_t (&x)[kTiles],
                                         DenseSums<Source, kTiles>& sums, bool rehearsal) {
  using S = Stage<Source>;
  using T = Team<kTiles>;
  const int warp = rehearsal ? 0 : threadIdx.x / 32, lane = threadIdx.x % 32;
  const int step = task.stage_blocks<Source>();
  const auto add = [&]<bool kWhole>(uint32_t stage, int first, int i) {
    Source w;
    read<kWhole>(w, stage + i * (Source::kBlockBytes / (kWhole ? 1 : 2)) + lane * 16,
                 stage + S::kScalesAt + i * Source::kScaleBytes + lane / 4 * (Source::kScaleBytes / 8),
                 task.half);
    uint4 columns[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) columns[t] = load_shared<uint4>(x[t] + (first + i) * kBlock * 2);
    sums.template add<kWhole>(w, columns);
  };
#pragma unroll 1
  for (int first = 0; first < blocks; first += step, turn.next(stages)) {
    if (turn.stage % T::kGroups != warp / T::kGroupWarps) continue;
    if (!rehearsal) mbar_wait(ring.full + turn.stage * 8, turn.phase);
    const uint32_t stage = ring.data + turn.stage * S::kBytes;
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
    if (arrives(lane == 0)) mbar_arrive(ring.free + turn.stage * 8);
  }
}

// ---- sums ----

// The n-th task of a cluster.
template <class T>
struct Place {
  static constexpr int kBuffers = T::kBuffers;
  int n = 0;
  __device__ int owner() const { return n / kBuffers % T::kRanks; }
  __device__ int buffer() const { return n % kBuffers; }
  __device__ int phase() const { return n / kBuffers & 1; }
};

// tokens: of a finisher's 8.
__device__ inline void expect_shares(uint64_t* received, int ranks, int tokens) {
  const int float4s = tokens <= 0 ? 0 : tokens <= 4 ? 1 : 2;
  mbar_expect(received, (ranks - 1) * 32 * float4s * static_cast<int>(sizeof(float4)));
}

// A multiplying warp's part, to sums [kBuffers][kWarps][tokens][kSumStride].
template <int kTiles, class Sums>
__device__ void hand_over(Shared<kTiles>& s, uint32_t sums, const Place<Team<kTiles>>& place,
                          const Task& task, int tokens, const Sums& sum, bool rehearsal) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int mine = (place.buffer() * Team<kTiles>::kWarps + warp) * tokens + 2 * c;
  const uint32_t to = sums + (mine * kSumStride + max(task.half, 0) * 16 + g) * sizeof(float);
  if (!rehearsal) mbar_wait(&s.empty[place.buffer()], place.phase() ^ 1);
#pragma unroll
  for (int j = 0; j < 2 * kTiles; ++j) {
    const int t = j / 2, i = j % 2;
    if (kTileTokens * t + 2 * c + i >= tokens || rehearsal) break;
    const uint32_t at = to + (kTileTokens * t + i) * kSumStride * sizeof(float);
    store_shared(at, sum.get(0, t, i)), store_shared(at + 32, sum.get(0, t, i + 2));
    if (task.half < 0) store_shared(at + 64, sum.get(1, t, i)), store_shared(at + 96, sum.get(1, t, i + 2));
  }
  __syncwarp();
  if (arrives(lane == 0) && !rehearsal) mbar_arrive(&s.summed[place.buffer()]);
}

// This block's sums of tokens [token, token + 4) of `tokens`, in the lane's row.
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

// The rows l and l + 8 (l xor 8) of one token, of which each lane has its own for two tokens: those with the
// upper row get the second token's.
__device__ inline float2 pair_up(float first, float second, int lane) {
  const bool upper = lane & 8;
  const float other = __shfl_xor_sync(0xFFFFFFFFu, upper ? first : second, 8);
  return upper ? make_float2(other, second) : make_float2(first, other);
}

// A finisher, of a buffer's tasks and a tile's tokens. There is one place for a block's share: a block sends
// for a task only after it has itself finished the last one of its own, for which the task's owner sent its
// share after it had finished the last that used the place.
template <int kTiles, class Epilogue>
__device__ void finish_tasks(Shared<kTiles>& s, const float* sums, const GemmParams& p, const Cut& cut,
                             const Epilogue& epilogue, const Part<Team<kTiles>::kRanks>& part, int finisher,
                             int lane) {
  constexpr int kRanks = Team<kTiles>::kRanks, kBuffers = Team<kTiles>::kBuffers;
  const int tile = finisher % kTiles, base = kTileTokens * tile;
  const int pair = lane / 16 * 8 + lane % 8, token = base + lane / 8 % 2;  // to be finished; token + 2 k too
  float4(&shares)[kRanks][kShares][32] = s.share[finisher];
  uint64_t* received = &s.received[finisher];
  int phase = 0;
  Place<Team<kTiles>> place{finisher / kTiles};
  for (int index = part.cluster + place.n * part.clusters; index < cut.tasks;
       index += kBuffers * part.clusters, place.n += kBuffers) {
    const Task task(cut, index);
    const int owner = place.owner(), unit = task.unit;
    decltype(prepare(epilogue, 0, 0, 0, 0)) ready[kTileTokens / 2] = {};
    if (owner == part.rank) {
#pragma unroll
      for (int k = 0; k < kTileTokens / 2; ++k)
        if (token + 2 * k < p.tokens) ready[k] = prepare(epilogue, unit, pair, token + 2 * k, 0);
    }
    mbar_wait(&s.summed[place.buffer()], place.phase());
    float4 v[kShares];
#pragma unroll
    for (int k = 0; k < kShares; ++k)
      v[k] = add_warps<Team<kTiles>::kWarps>(
          sums + place.buffer() * Team<kTiles>::kWarps * p.tokens * kSumStride, p.tokens, base + 4 * k, lane);
    __syncwarp();
    if (arrives(lane == 0)) mbar_arrive(&s.empty[place.buffer()]);
    if (owner != part.rank) {
#pragma unroll
      for (int k = 0; k < kShares; ++k)
        if (base + 4 * k < p.tokens)
          remote_store(remote_addr(&shares[part.rank][k][lane], owner), v[k], remote_addr(received, owner));
      continue;
    }
    mbar_wait(received, phase);
    phase ^= 1;
#pragma unroll
    for (int k = 0; k < kShares; ++k) {
#pragma unroll
      for (int r = 0; r < kRanks; ++r)
        if (r != part.rank && base + 4 * k < p.tokens) add(v[k], shares[r][k][lane]);
    }
    __syncwarp();
    if (lane == 0) expect_shares(received, kRanks, p.tokens - base);
#pragma unroll
    for (int k = 0; k < kTileTokens / 2; ++k) {
      if (base + 2 * k >= p.tokens) break;
      const float4 four = v[k / 2];
      const float2 both = k % 2 == 0 ? pair_up(four.x, four.y, lane) : pair_up(four.z, four.w, lane);
      if (token + 2 * k < p.tokens && task.has(pair / 8))
        finish(epilogue, ready[k], unit, pair, token + 2 * k, both.x * p.factor, both.y * p.factor);
    }
  }
}

template <int kTiles>
__device__ void init_shared(Shared<kTiles>& s, const Cut& cut, int tokens) {
  for (int i = 0; i < cut.stages; ++i)
    mbar_init(&s.full[i], kCopyArrivals), mbar_init(&s.free[i], Team<kTiles>::kGroupWarps * kWarpArrivals);
  for (int b = 0; b < 2; ++b) {
    mbar_init(&s.summed[b], Team<kTiles>::kWarps * kWarpArrivals);
    mbar_init(&s.empty[b], kTiles * kWarpArrivals);
  }
  for (uint64_t& received : s.received) mbar_init(&received, 1);
  mbar_init(&s.started, 1), mbar_init(&s.landed, 1);
  mbar_init_fence();
  for (int f = 0; f < Team<kTiles>::kFinishers; ++f)
    expect_shares(&s.received[f], Team<kTiles>::kRanks, tokens - kTileTokens * (f % kTiles));
}

template <class Source, int kTiles, class Epilogue>
__global__ void __launch_bounds__(Team<kTiles>::kThreads) __maxnreg__(kTiles == 1 ? 80 : 128)
    dense_decode_kernel(const GemmParams p, const Cut cut, const Norm norm, const Epilogue epilogue) {
  extern __shared__ __align__(128) uint8_t dynamic[];  // ring, rows, sums
  __shared__ Shared<kTiles> s;
  using T = Team<kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Part<T::kRanks> part(p.blocks);
  constexpr auto kStageBytes = Stage<Source>::kBytes;
  const int row_bytes = row_stride(p.blocks, T::kRanks);
  uint8_t* rows = dynamic + cut.stages * kStageBytes;
  auto* sums = reinterpret_cast<float*>(rows + p.tokens * row_bytes);
  if (warp == T::kCopier) {
    if (lane == 0) init_shared(s, cut, p.tokens);
    __syncwarp();
    cluster_arrive_relaxed();
    start_successor();
    copy_tasks<Source>(s, dynamic, p, cut, part);
    __syncwarp();
    cluster_wait();
    return;
  }
  cluster_arrive_relaxed();
  // The last finisher goes once through the multiplying warps' code, on whatever lies in shared memory and
  // without a trace, so that it is there when they need it: it comes late once the weights are on their way.
  // Widening eight bits is code enough for that to pay.
  const bool rehearsal =
      kRehearses && kTiles == 1 && Source::kScaled && warp == T::kFinisher + T::kFinishers - 1;
  constexpr int kMultipliers = T::kMultipliers;
  const int first = part.first * kBlock, end = first + part.blocks * kBlock;
  start_successor();
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
    const RingAt ring(s, dynamic);
    const uint32_t sums_at = kept(smem_addr(sums));
    Turn turn;
    Place<Team<kTiles>> place;
#pragma unroll 1
    for (int index = part.cluster; index < cut.tasks; index += part.clusters, ++place.n) {
      const Task task(cut, index);
      DenseSums<Source, kTiles> sum;
      multiply(ring, task, part.blocks, cut.stages, turn, x, sum, rehearsal);
      hand_over(s, sums_at, place, task, p.tokens, sum, rehearsal);
      if (rehearsal) break;
    }
  }
  if (warp < T::kFinisher) return;
  wait_for_predecessor();
  if (warp == T::kFinisher && lane == 0) mbar_arrive(&s.started);
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
  return static_cast<int>(std::clamp<int64_t>(room / Stage<Source>::kBytes, 0, T::kStages)) / T::kGroups *
         T::kGroups;
}

// Clusters that run at a time, one block a multiprocessor; at least 1.
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

Cut cut_of(const Matrix& w, int clusters, int stages) {
  const auto units = static_cast<int>(w.units), first = static_cast<int>(w.first_unit);
  const int rest = units % clusters, whole = 2 * rest <= clusters ? units - rest : units;
  return {stages, whole, whole + 2 * (units - whole), units, first, whole == clusters ? 0 : whole};
}

template <class Source, int kTiles, class Epilogue>
Status run_tiles(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& epilogue,
                 cudaStream_t stream) {
  using T = Team<kTiles>;
  const auto kernel = dense_decode_kernel<Source, kTiles, Epilogue>;
  static PerDevice<int> prepared;
  const Result<int> most_clusters = prepared.get([&] { return prepare_kernel<T>(kernel); });
  if (!most_clusters.ok()) return most_clusters.status();
  const int units = static_cast<int>(w.units), clusters = std::min(units, most_clusters.value());
  const Cut cut = cut_of(w, clusters, stages_for<Source, T>(w.cols, x.tokens));
  const size_t shared = cut.stages * Stage<Source>::kBytes + shared_rest<T>(w.cols, x.tokens);
  const GemmParams p{.data = w.data.as<uint8_t>(),
                     .scales = w.scales.as<uint8_t>(),
                     .units = units,
                     .blocks = static_cast<int>(w.cols / kBlock),
                     .x = static_cast<const uint16_t*>(x.x),
                     .rows = nullptr,
                     .cols = static_cast<int>(w.cols),
                     .tokens = x.tokens,
                     .factor = x.factor * Source::kFactor,
                     .jobs = nullptr,
                     .job_count = nullptr};
  return launch_clusters(T::kRanks, kernel, dim3(T::kRanks * clusters), dim3(T::kThreads),
                         std::max<size_t>(shared, T::kLeast), stream, p, cut, norm, epilogue);
}

template <class Source, class Epilogue>
Status run(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& epilogue,
           cudaStream_t stream) {
  if (x.tokens <= 8) return run_tiles<Source, 1>(w, x, norm, epilogue, stream);
  if (x.tokens <= 16) return run_tiles<Source, 2>(w, x, norm, epilogue, stream);
  return run_tiles<Source, 4>(w, x, norm, epilogue, stream);
}

template <class Epilogue>
Status run_kind(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& out,
                cudaStream_t stream) {
  switch (w.kind) {
    case Kind::kBF16:
      return run<Bf16Source>(w, x, norm, out, stream);
    case Kind::kF16:
      return run<F16Source>(w, x, norm, out, stream);
    case Kind::kQ8_0:
      return run<Q8Source>(w, x, norm, out, stream);
    case Kind::kMxfp8:
      return run<Mxfp8Source>(w, x, norm, out, stream);
    case Kind::kMxfp4:
      break;
  }
  return no_kernel("dense_decode", w, x.tokens);
}

template <class Epilogue>
Status run_normed(const Matrix& w, const Norm& norm, const Epilogue& out, cudaStream_t stream) {
  return run_kind(w, {.factor = 1.0f / norm.factor, .tokens = norm.rows}, norm, out, stream);
}

}  // namespace

bool dense_decode_fits(int64_t cols, int tokens) {
  const int stages = tokens <= 8    ? stages_for<Q8Source, Team<1>>(cols, tokens)
                     : tokens <= 16 ? stages_for<Q8Source, Team<2>>(cols, tokens)
                     : tokens <= 32 ? stages_for<Q8Source, Team<4>>(cols, tokens)
                                    : 0;
  return stages >= 2;
}
static_assert(kMostNormedCols == kNormed);

Status dense_decode(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream) {
  return run_kind(w, x, Norm{}, out, stream);
}
Status dense_decode(const Matrix& w, const Activations& x, const Qkv& out, cudaStream_t stream) {
  return run_kind(w, x, Norm{}, out, stream);
}
Status dense_decode(const Matrix& w, const Norm& norm, const Store& out, cudaStream_t stream) {
  return run_normed(w, norm, out, stream);
}
Status dense_decode(const Matrix& w, const Norm& norm, const Qkv& out, cudaStream_t stream) {
  return run_normed(w, norm, out, stream);
}

}  // namespace moesaic::cuda::sm90a
