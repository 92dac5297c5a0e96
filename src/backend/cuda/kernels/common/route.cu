// The kernels between the products: norm, router, top-k and work list, RoPE's angles. Contracts:
// kernels/common/route.h.
//
// Maths    norm_kernel      norm.cuh
//          score_kernel     norm and router of few logits: sum_i x_i g_i w_i, then the norm's factor
//          choose_kernel    norm, router, top-k and work list, for up to 8 rows
//          route_kernel     top-k and work list for up to 64 rows; beyond, top_k_kernel and plan_kernel
//          rotations_kernel cosine and sine of position * frequency, in double
// Shapes   hidden a multiple of 4. plan(): counts [warps][experts] in shared memory. Each warp counts its
//          part of the pairs; a scan over warps and experts gives each a first permuted row, and the warp
//          numbers its pairs.
//
// Grid     norm: a CTA a row. score: 2 or 4 experts x rows in steps of the grid's y. choose: a warp an expert
//          x a row. route: one CTA. plan: a CTA 1,024 pairs. top_k: a warp a row.
//
// Barriers __syncthreads() only. score_kernel alternates between two scratch buffers, so one a row is enough.
// Ordering score_kernel and choose_kernel load weights before the wait for the predecessor. choose_kernel:
//          a CTA's logits, then __threadfence(), then an atomic count of arrivals; the CTA that arrives
//          last reads all logits behind another fence, and sets the count back to 0.
// Resident No CTA waits for another: the last to arrive does the rest.
//
// Bytes    norm: the row, its outputs, deferred expert rows. score: the router's weights once per CTA of y.
//          plan: all choices once per CTA. Shared memory: 4 hidden bytes, or plan()'s counts (40 KB), or
//          scratch.
// Floor    latency: one or two dependent reads and a launch. The router's weights of gpt-oss are 0.4 to 1.5
//          MB.
#include "backend/cuda/kernels/common/norm.cuh"
#include "backend/cuda/kernels/common/work_list.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kMaxExperts = 1024;

__device__ void write_in_tiles(const Norm& p, int row, const float4* values) {
  const auto* const columns = reinterpret_cast<const float2*>(values);
  const ActivationRow out(p.out_tile, p.hidden, row);
  for (int i = threadIdx.x; i < p.hidden / 8; i += kNormThreads) {
    const float2* const from = columns + i / 4 * 16 + i % 4;
    const uint2 low = half_words({from[0].x, from[0].y, from[4].x, from[4].y}, p.factor, p.bf16),
                high = half_words({from[8].x, from[8].y, from[12].x, from[12].y}, p.factor, p.bf16);
    static_cast<uint4*>(p.out)[out.chunk(i / 4, i % 4) / 8] = {low.x, low.y, high.x, high.y};
  }
}
__device__ void write_normed(const Norm& p, int row, const float4* values) {
  uint2* out = static_cast<uint2*>(p.out) + static_cast<int64_t>(row) * p.hidden / 4;
  for (int i = threadIdx.x; i < p.hidden / 4; i += kNormThreads)
    out[i] = half_words(values[i], p.factor, p.bf16);
}

// kTiles: out_tile > 0. As one kernel the compiler would have fewer loads in flight.
template <bool kTiles>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(const Norm p) {
  extern __shared__ float4 values[];  // [hidden / 4]
  __shared__ float scratch[kNormThreads / 32];
  wait_for_predecessor();
  launch_dependents();
  const int r = blockIdx.x;
  norm_row(p, p.row_map != nullptr ? p.row_map[r] : r, values, scratch);
  if constexpr (kTiles) {
    write_in_tiles(p, r, values);
  } else {
    write_normed(p, r, values);
  }
  if (p.out_f32 == nullptr) return;
  float4* out = reinterpret_cast<float4*>(p.out_f32 + static_cast<int64_t>(r) * p.hidden);
  for (int i = threadIdx.x; i < p.hidden / 4; i += kNormThreads) out[i] = values[i];
}

__global__ void __launch_bounds__(256) top_k_kernel(const Route p) {
  wait_for_predecessor();
  launch_dependents();
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row < p.rows) top_k_row<kMaxExperts>(p, row, threadIdx.x % 32, p.ids);
}

// Counts and starts of the experts' rows.
struct Sizes {
  int permuted_rows, work_tiles, starts;
};
__device__ Sizes operator+(const Sizes& a, const Sizes& b) {
  return {a.permuted_rows + b.permuted_rows, a.work_tiles + b.work_tiles, a.starts + b.starts};
}
// Over the first warps of the CTA, in all its threads: the sum of the threads before, and of all.
struct Scan {
  Sizes before, total;
};
__device__ Scan block_scan(const Sizes& x, int warps, Sizes* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Sizes sum = x;
  for (int offset = 1; offset < 32; offset *= 2) {
    const Sizes below = {__shfl_up_sync(~0u, sum.permuted_rows, offset),
                         __shfl_up_sync(~0u, sum.work_tiles, offset),
                         __shfl_up_sync(~0u, sum.starts, offset)};
    if (lane >= offset) sum = sum + below;
  }
  if (lane == 31 && warp < warps) scratch[warp] = sum;
  __syncthreads();
  Sizes base = {}, total = {};
  for (int w = 0; w < warps; ++w) {
    if (w == warp) base = total;
    total = total + scratch[w];
  }
  __syncthreads();
  const Sizes to = base + sum;
  return {{to.permuted_rows - x.permuted_rows, to.work_tiles - x.work_tiles, to.starts - x.starts}, total};
}

// Warps that plan: each counts a part of the pairs for itself, and what they counted is added up one after
// the other.
constexpr int kCounts = 8192;  // counters: warps times experts
int plan_warps(int pairs, int experts) { return max(1, min(kCounts / experts, min(32, (pairs + 63) / 64))); }

// Bytes of counts and scratch.
constexpr size_t plan_bytes(int warps, int experts) {
  return sizeof(int) * warps * experts + 32 * sizeof(Sizes);
}

// The pairs that a CTA gives places. others: what each expert has of the pairs before them, [experts], and
// behind them; null: no others.
struct PairShare {
  int begin, end;
  int* others;
};
// All threads of the CTA take part in the count. `others` is complete behind the next barrier.
__device__ void count_others(const Route& p, const PairShare& share) {
  constexpr int kAhead = 8;
  const int pairs = p.rows * p.top_k, step = static_cast<int>(blockDim.x);
  for (int i = threadIdx.x; i < 2 * p.experts; i += step) share.others[i] = 0;
  __syncthreads();
  for (int base = threadIdx.x; base < pairs; base += kAhead * step) {
    int expert[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) expert[i] = base + i * step < pairs ? p.ids[base + i * step] : -1;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int pair = base + i * step;
      if (expert[i] >= 0 && (pair < share.begin || pair >= share.end))
        atomicAdd(share.others + (pair < share.begin ? 0 : p.experts) + expert[i], 1);
    }
  }
}

// Pairs of the same expert stand in the order of rows. Who has the first pairs writes the work list. ids: of
// the pairs; counts: [warps][experts]; scratch: [32].
__device__ void plan(const Route& p, const int* ids, const PairShare& share, int warps, int* counts,
                     Sizes* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int* mine = counts + warp * p.experts;
  const int of_warp = (share.end - share.begin + 32 * warps - 1) / (32 * warps) * 32;
  const int begin = min(share.begin + warp * of_warp, share.end), end = min(begin + of_warp, share.end);
  for (int i = threadIdx.x; i < warps * p.experts; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  // body(pair, expert, rank, equals): equals: of the 32 pairs, `rank` of them before this one; expert -1:
  // none, as of given ids that are to be skipped. Several pairs are read before the first is looked at.
  const auto for_pairs = [&](const auto& body) {
    constexpr int kAhead = 8;
    for (int base = begin + lane; base - lane < end; base += 32 * kAhead) {
      int expert[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) expert[i] = base + 32 * i < end ? ids[base + 32 * i] : -1;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const unsigned equals = __match_any_sync(~0u, expert[i]);
        body(base + 32 * i, expert[i], __popc(equals & ((1u << lane) - 1)), __popc(equals));
        __syncwarp();
      }
    }
  };
  for_pairs([&](int, int expert, int rank, int equals) {
    if (expert >= 0 && rank == 0) mine[expert] += equals;
  });
  __syncthreads();
  // A thread takes experts e, e + blockDim.x, ...: one after the other in one scan each.
  Sizes done = {};
  for (int first = 0; first < p.experts; first += blockDim.x) {
    const int expert = first + threadIdx.x;
    const bool counted = share.others != nullptr && expert < p.experts;
    const int before = counted ? share.others[expert] : 0;
    int count = before + (counted ? share.others[p.experts + expert] : 0);
    for (int w = 0; w < warps && expert < p.experts; ++w) count += counts[w * p.experts + expert];
    const Pieces pieces(p, count);
    const int planning = (min(p.experts - first, static_cast<int>(blockDim.x)) + 31) / 32;
    const Scan scan = block_scan({count, pieces.work_tiles(), pieces.starts()}, planning, scratch);
    const Sizes at = done + scan.before;
    if (share.begin == 0) pieces.write(p.work_tiles + at.work_tiles, expert, at.permuted_rows, at.starts);
    for (int w = 0, permuted_row = at.permuted_rows + before; w < warps && expert < p.experts; ++w) {
      const int n = counts[w * p.experts + expert];
      counts[w * p.experts + expert] = permuted_row, permuted_row += n;
    }
    done = done + scan.total;
  }
  if (share.begin == 0 && threadIdx.x == 0) *p.work_tile_count = done.work_tiles;
  __syncthreads();
  for_pairs([&](int pair, int expert, int rank, int equals) {
    const int permuted_row = expert >= 0 ? mine[expert] + rank : 0;
    __syncwarp();
    if (expert < 0) return;
    p.permuted_rows[pair] = permuted_row, p.source_rows[permuted_row] = pair / p.top_k;
    if (rank == 0) mine[expert] += equals;
  });
}

// Each CTA counts all pairs, if they are many, and places its own.
constexpr int kPlannedPairs = 1024;  // a CTA's own
__global__ void __launch_bounds__(1024) plan_kernel(const Route p, int warps) {
  extern __shared__ int plan_counts[];  // [warps][experts], [2][experts] of others, then scratch
  int* const others = plan_counts + warps * p.experts;
  const int pairs = p.rows * p.top_k, begin = blockIdx.x * kPlannedPairs;
  const PairShare share{begin, min(begin + kPlannedPairs, pairs), gridDim.x > 1 ? others : nullptr};
  wait_for_predecessor();
  launch_dependents();
  if (gridDim.x > 1) count_others(p, share);
  plan(p, p.ids, share, warps, plan_counts, reinterpret_cast<Sizes*>(others + 2 * p.experts));
}

// Both in one CTA, for the rows of decoding.
constexpr int kRoutedAtOnce = 64;
__global__ void __launch_bounds__(1024) route_kernel(const Route p, int warps) {
  extern __shared__ int route_ids[];  // [pairs], then the plan's counts and scratch
  wait_for_predecessor();
  launch_dependents();
  top_k_rows<kMaxExperts>(p, route_ids);
  int* const counts = route_ids + p.rows * p.top_k;
  plan(p, route_ids, {0, p.rows * p.top_k, nullptr}, warps, counts,
       reinterpret_cast<Sizes*>(counts + warps * p.experts));
}

// Norm, router and route in one kernel, for decoding: a warp an expert, whose weights are read while the
// predecessor still runs. Every CTA norms its row for itself, and the last CTA to arrive routes all rows.
constexpr int kRouterLoads = 24;  // float4 a lane: hidden up to 3,072
__global__ void __launch_bounds__(kNormThreads)
    choose_kernel(const Norm n, const Router r, const Route t, int* arrived) {
  extern __shared__ float4 values[];  // [hidden / 4], then the plan's counts
  __shared__ float scratch[kNormThreads / 32];
  __shared__ Sizes plan_scratch[kNormThreads / 32];
  __shared__ bool last_block;
  const int lane = threadIdx.x % 32, row = blockIdx.y;
  const int expert = blockIdx.x * (kNormThreads / 32) + threadIdx.x / 32;
  const float4* weight =
      reinterpret_cast<const float4*>(r.weight + static_cast<int64_t>(min(expert, r.experts - 1)) * r.hidden);
  float4 w[kRouterLoads];
#pragma unroll
  for (int i = 0; i < kRouterLoads; ++i) {
    if (lane + 32 * i < r.hidden / 4) w[i] = __ldg(weight + lane + 32 * i);
  }
  wait_for_predecessor();
  launch_dependents();
  norm_row(n, row, values, scratch);
  if (blockIdx.x == 0) write_normed(n, row, values);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRouterLoads; ++i) {
    if (lane + 32 * i >= r.hidden / 4) break;
    const float4 x = values[lane + 32 * i];
    sum = fmaf(w[i].w, x.w, fmaf(w[i].z, x.z, fmaf(w[i].y, x.y, fmaf(w[i].x, x.x, sum))));
  }
  sum = warp_sum(sum);
  if (lane == 0 && expert < r.experts)
    r.logits[static_cast<int64_t>(row) * r.experts + expert] = sum + r.bias[expert];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last_block = atomicAdd(arrived, 1) == static_cast<int>(gridDim.x * gridDim.y) - 1;
  __syncthreads();
  if (!last_block) return;
  __threadfence();
  if (threadIdx.x == 0) *arrived = 0;
  int* counts = reinterpret_cast<int*>(values);
  top_k_rows<kNormThreads>(t, counts);
  plan(t, counts, {0, t.rows * t.top_k, nullptr}, kNormThreads / 32, counts + t.rows * t.top_k, plan_scratch);
}

// Norm and router for the rows of decoding, as short as can be, because nothing runs beside it: kScored
// experts a CTA, whose weights are in registers before the kernel waits; the logits of a row are summed
// before the norm's factor is known, so that one meeting of the threads serves all sums.
constexpr int kScoreLoads = 6;  // float4 a thread: hidden up to 3,072
template <int kScored>
struct Scores {
  float4 norm_weight[kScoreLoads], weight[kScored][kScoreLoads];

  __device__ void load(const Norm& n, const Router& r, int first) {
#pragma unroll
    for (int j = 0; j < kScoreLoads; ++j) {
      const int i = min(j * kNormThreads + static_cast<int>(threadIdx.x), n.hidden / 4 - 1);
      norm_weight[j] = __ldg(reinterpret_cast<const float4*>(n.weight) + i);
#pragma unroll
      for (int e = 0; e < kScored; ++e) {
        const int64_t expert = min(first + e, r.experts - 1);
        weight[e][j] = __ldg(reinterpret_cast<const float4*>(r.weight + expert * r.hidden) + i);
      }
    }
  }
  // sum: of each expert, and of squares, by this thread.
  __device__ void add(const float4 (&x)[kScoreLoads], float (&sum)[kScored + 1]) const {
#pragma unroll
    for (int j = 0; j < kScoreLoads; ++j) {
      const float4 v = x[j], g = norm_weight[j], y = {v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w};
      sum[kScored] = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum[kScored]))));
#pragma unroll
      for (int e = 0; e < kScored; ++e) {
        const float4 w = weight[e][j];
        sum[e] = fmaf(w.w, y.w, fmaf(w.z, y.z, fmaf(w.y, y.y, fmaf(w.x, y.x, sum[e]))));
      }
    }
  }
  __device__ void write_normed(const Norm& n, int row, const float4 (&x)[kScoreLoads], float scale) const {
    uint2* out = static_cast<uint2*>(n.out) + static_cast<int64_t>(row) * (n.hidden / 4);
#pragma unroll
    for (int j = 0; j < kScoreLoads; ++j) {
      const int i = j * kNormThreads + static_cast<int>(threadIdx.x);
      const float4 v = x[j], g = norm_weight[j];
      if (i < n.hidden / 4)
        out[i] = half_words({v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w},
                            n.factor, n.bf16);
    }
  }
};
__device__ __forceinline__ void load_row(const Norm& n, int row, float4 (&x)[kScoreLoads]) {
#pragma unroll
  for (int j = 0; j < kScoreLoads; ++j) {
    const int i = j * kNormThreads + static_cast<int>(threadIdx.x);
    x[j] = i < n.hidden / 4 ? reinterpret_cast<const float4*>(n.x + static_cast<int64_t>(row) * n.hidden)[i]
                            : make_float4(0, 0, 0, 0);
  }
}

// A CTA has rows blockIdx.y, blockIdx.y + gridDim.y, ...
template <int kScored>
__global__ void __launch_bounds__(kNormThreads) score_kernel(const Norm n, const Router r) {
  __shared__ float scratch[2][kNormThreads / 32][kScored + 1];
  const int first = blockIdx.x * kScored, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int expert = first + static_cast<int>(threadIdx.x);
  const bool mine = threadIdx.x < kScored && expert < r.experts;
  const float bias = mine ? __ldg(r.bias + expert) : 0.0f;
  Scores<kScored> scores;
  scores.load(n, r, first);
  launch_dependents();
  wait_for_predecessor();
  for (int row = blockIdx.y, buffer = 0; row < n.rows; row += gridDim.y, buffer ^= 1) {
    float4 x[kScoreLoads];
    load_row(n, row, x);
    float sum[kScored + 1] = {};
    scores.add(x, sum);
#pragma unroll
    for (int e = 0; e <= kScored; ++e) sum[e] = warp_sum(sum[e]);
    if (lane <= kScored) {
      float own = sum[0];
#pragma unroll
      for (int e = 1; e <= kScored; ++e) own = lane == e ? sum[e] : own;
      scratch[buffer][warp][lane] = own;
    }
    __syncthreads();
    const auto total = [&](int e) {
      const auto& s = scratch[buffer];
      return (s[0][e] + s[1][e]) + (s[2][e] + s[3][e]);
    };
    const float mean = total(kScored) / static_cast<float>(n.hidden), scale = rsqrtf(mean + n.eps);
    if (mine) r.logits[static_cast<int64_t>(row) * r.experts + expert] = total(threadIdx.x) * scale + bias;
    if (blockIdx.x > 0) continue;
    if (!(mean <= 3.0e38f) && threadIdx.x == 0) atomicCAS(n.fault, 0, n.code);
    scores.write_normed(n, row, x, scale);
  }
}

__global__ void rotations_kernel(const int32_t* positions, int rows, const double* inverse_frequency,
                                 int half, double factor, float2* rotation) {
  wait_for_predecessor();
  launch_dependents();
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= rows * half) return;
  double sine, cosine;
  sincos(positions[index / half] * inverse_frequency[index % half], &sine, &cosine);
  rotation[index] = {static_cast<float>(cosine * factor), static_cast<float>(sine * factor)};
}

}  // namespace

Status norm(const Norm& p, cudaStream_t stream) {
  const auto kernel = p.out_tile > 0 ? norm_kernel<true> : norm_kernel<false>;
  return launch(kernel, dim3(p.rows), dim3(kNormThreads), p.hidden * sizeof(float), stream, p);
}

static_assert(kMostScoredHidden == 4 * kNormThreads * kScoreLoads && kMostChosenHidden == 128 * kRouterLoads);

template <int kScored>
Status run_score(const Norm& n, const Router& r, cudaStream_t stream) {
  constexpr int kBlocks = 396;  // three a multiprocessor of an H200
  static OncePerDevice prepared;
  const Status status =
      prepared.run([] { return set_attributes(score_kernel<kScored>, {.prefer_shared = true}); });
  if (!status.ok()) return status;
  const int across = (r.experts + kScored - 1) / kScored, down = min(r.rows, max(1, kBlocks / across));
  return launch(score_kernel<kScored>, dim3(across, down), dim3(kNormThreads), 0, stream, n, r);
}
Status score(const Norm& n, const Router& r, cudaStream_t stream) {
  static_assert(kNormThreads == 128, "score_kernel adds four warps");
  // One row: a thread has little to load, and there are few CTAs even so.
  return n.rows == 1 ? run_score<2>(n, r, stream) : run_score<4>(n, r, stream);
}
Status choose(const Norm& n, const Router& r, const Route& t, int* arrived, cudaStream_t stream) {
  const size_t counts = sizeof(int) * (t.rows * t.top_k + kNormThreads / 32 * t.experts);
  return launch(choose_kernel, dim3((r.experts + kNormThreads / 32 - 1) / (kNormThreads / 32), r.rows),
                dim3(kNormThreads), max(n.hidden * sizeof(float), counts), stream, n, r, t, arrived);
}

int max_work_tiles(int rows, int experts, int top_k, int tile) {
  const int pairs = rows * top_k;
  return min(pairs, min(experts, pairs) + pairs / tile);
}

Status route(const Route& p, cudaStream_t stream) {
  const int pairs = p.rows * p.top_k, warps = plan_warps(pairs, p.experts);
  if (p.rows <= kRoutedAtOnce)
    return launch(route_kernel, dim3(1), dim3(1024), plan_bytes(warps, p.experts) + sizeof(int) * pairs,
                  stream, p, warps);
  const Status status = top_k(p, stream);
  return status.ok() ? list_work(p, stream) : status;
}

Status top_k(const Route& p, cudaStream_t stream) {
  return launch(top_k_kernel, dim3((p.rows + 7) / 8), dim3(256), 0, stream, p);
}

Status list_work(const Route& p, cudaStream_t stream) {
  const int pairs = p.rows * p.top_k, warps = plan_warps(min(pairs, kPlannedPairs), p.experts);
  return launch(plan_kernel, dim3((pairs + kPlannedPairs - 1) / kPlannedPairs), dim3(1024),
                plan_bytes(warps + 2, p.experts), stream, p, warps);
}

Status rotations(const int32_t* positions, int rows, const double* inverse_frequency, int half, double factor,
                 float2* rotation, cudaStream_t stream) {
  return launch(rotations_kernel, dim3((rows * half + 255) / 256), dim3(256), 0, stream, positions, rows,
                inverse_frequency, half, factor, rotation);
}

}  // namespace moesaic::cuda
