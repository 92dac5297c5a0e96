// attention_decode.cu: how the warps' results of a KV split, and then the splits' of a row, are joined.
#pragma once

#include "backend/cuda/kernels/sm90/attention_decode_page.cuh"

namespace moesaic::cuda::attention_decode {

using namespace sm90;

// Partial results that a cluster's CTAs send to the one that finishes part i (head i / (D / 32) and so on),
// which is i % size: [its parts, blocks].
template <int D>
struct Inbox {
  static constexpr int kParts = kHeads * D / kSlice;
  static constexpr int kEntryBytes = static_cast<int>(kSlice * sizeof(float) + sizeof(Running));
  float* values;    // [kSlice]
  Running* stats;   // behind all values
  int size, shift;  // CTAs of the cluster: 2^shift

  __device__ Inbox(void* at, int size, int shift)
      : values(static_cast<float*>(at)),
        stats(reinterpret_cast<Running*>(values + entries(size) * kSlice)),
        size(size),
        shift(shift) {}
  __host__ __device__ static constexpr int entries(int size) { return kParts < size ? size : kParts; }
  __device__ int owner(int part) const { return part & (size - 1); }
  __device__ int at(int part, int block) const { return (part >> shift << shift) + block; }
  __host__ __device__ static constexpr int bytes(int size) {
    return size == 1 ? 0 : entries(size) * kEntryBytes;
  }
};

// Joins the warps' results, relative to the greatest of their maxima: each counts by[i].
struct WarpJoin {
  float by[kWarps];
  Running of = Running::nothing();

  template <int D>
  __device__ WarpJoin(const WarpResults<D>& results, int warps, int head) {
    Running all[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      all[w] = results.stats[min(w, warps - 1)][head];  // the last one again changes no maximum
      of.max = fmaxf(of.max, all[w].max);
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      by[w] = w < warps ? exp2_fast(all[w].max - of.max) : 0.0f;
      of.sum = fmaf(all[w].sum, by[w], of.sum);
    }
  }
};

// The factor that turns weighted sums relative to `of` into the row's result: the sink joins.
__device__ inline float last_factor(const Running& of, float sink) {
  const float logit = sink * kLog2E, top = fmaxf(of.max, logit), by = exp2_fast(of.max - top);
  return by * __frcp_rn(fmaf(of.sum, by, exp2_fast(logit - top)));
}

// Joins the warps' results: calls end(head, d, values of d .. d + 3, statistics).
template <int D, class End>
__device__ void join_warps(const WarpResults<D>& results, int warps, int heads, const End& end) {
#pragma unroll
  for (int k = 0; k < (kHeads * D / 4 + kThreads - 1) / kThreads; ++k) {
    const int i = k * kThreads + threadIdx.x, head = i / (D / 4), d = i % (D / 4) * 4;
    if (head >= heads) break;
    const WarpJoin joined(results, warps, head);
    float4 sum{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 v = *reinterpret_cast<const float4*>(&results.values[min(w, warps - 1)][head][d]);
      const float by = joined.by[w];
      sum = {fmaf(v.x, by, sum.x), fmaf(v.y, by, sum.y), fmaf(v.z, by, sum.z), fmaf(v.w, by, sum.w)};
    }
    end(head, d, sum, joined.of);
  }
}

// How a warp joins the CTAs' results. Up to kMost KV splits: 32 dimensions at a time, one a lane.
// More: 8 dimensions at a time, four lanes each, of which each takes every fourth KV split.
struct KvSplitJoin {
  static constexpr int kMost = kMostKvSplits / 4;  // KV splits of a lane
  int kv_splits, groups, dimensions;
  int dimension, first;  // the lane's dimension and first KV split

  __device__ KvSplitJoin(int kv_splits, int lane)
      : kv_splits(kv_splits),
        groups(kv_splits > kMost ? 4 : 1),
        dimensions(kSlice / groups),
        dimension(lane % dimensions),
        first(lane / dimensions) {}
  template <class Over>
  __device__ float over_groups(float x, const Over& over) const {
    if (groups > 1) {
      x = over(x, __shfl_xor_sync(0xFFFFFFFFu, x, kSlice / 4));
      x = over(x, __shfl_xor_sync(0xFFFFFFFFu, x, kSlice / 2));
    }
    return x;
  }
  // Returns dimension `d` of part `part`, from the inbox.
  template <int D>
  __device__ float join(const Inbox<D>& inbox, int part, int d, float sink) const {
    Running all[kMost];
    float values[kMost];
    Running of = Running::nothing();
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      // The last one again changes no maximum.
      const int at = inbox.at(part, min(first + j * groups, kv_splits - 1));
      all[j] = inbox.stats[at], values[j] = inbox.values[at * kSlice + d];
      of.max = fmaxf(of.max, all[j].max);
    }
    of.max = over_groups(of.max, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const float by = first + j * groups < kv_splits ? exp2_fast(all[j].max - of.max) : 0.0f;
      of.sum = fmaf(all[j].sum, by, of.sum), sum = fmaf(values[j], by, sum);
    }
    const auto add = [](float a, float b) { return a + b; };
    of.sum = over_groups(of.sum, add), sum = over_groups(sum, add);
    return sum * last_factor(of, sink);
  }
};

}  // namespace moesaic::cuda::attention_decode
