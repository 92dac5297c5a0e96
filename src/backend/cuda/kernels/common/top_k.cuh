// Top-k of one row's logits and the softmax of the chosen, by a warp.
//
// Maths    the k largest logits, the lowest index first among equals; weights = softmax over these k
// Shapes   up to 32 kPerLane experts: lane l has the logits l, l + 32, .. as ordered keys. Lane i ends with
//          the i-th choice; i < k <= 32.
// Roles    one warp, all lanes; reductions and shuffles, no shared memory
#pragma once

#include "backend/cuda/kernels/common/launch.cuh"

namespace moesaic::cuda {

struct Choice {
  float logit = -INFINITY;
  int id = 0;
};
// Returns the softmax weight of the k-th largest of `count` logits, which lane k has.
__device__ inline float choice_weight(float logit, int count, int lane) {
  const float largest = __shfl_sync(0xFFFFFFFFu, logit, 0);
  const float share = lane < count ? __expf(logit - largest) : 0.0f;
  return share / warp_sum(share);
}

// A row's logits, larger for larger ones, kPerLane a lane. Logits that are NaN or infinite have left a fault
// elsewhere: here they only have to end in experts that exist.
template <int kPerLane>
struct LogitKeys {
  uint32_t keys[kPerLane];  // 0: none, or chosen

  __device__ void load(const float* logits, int experts, int lane) {
    constexpr float kMost = 3.0e38f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      keys[i] = lane + 32 * i < experts ? ordered_key(fminf(fmaxf(logits[lane + 32 * i], -kMost), kMost)) : 0;
  }
  // The largest, the lowest index of equals, always distinct: lane k keeps the k-th.
  __device__ Choice pick(int count, int lane) {
    constexpr uint32_t kAll = 0xFFFFFFFFu;
    Choice choice;
    for (int k = 0; k < count; ++k) {
      uint32_t best = 0, id = lane;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (keys[i] > best) best = keys[i], id = lane + 32 * i;
      }
      const uint32_t most = __reduce_max_sync(kAll, best);
      id = kPerLane == 1 ? __ffs(__ballot_sync(kAll, best == most)) - 1
                         : __reduce_min_sync(kAll, best == most ? id : kAll);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (lane + 32 * i == id) keys[i] = 0;
      }
      if (lane == k) choice = {from_ordered_key(most), static_cast<int>(id)};
    }
    return choice;
  }
  // ids, weights [count].
  __device__ void choose(int count, int lane, int32_t* ids, float* weights) {
    const Choice choice = pick(count, lane);
    const float weight = choice_weight(choice.logit, count, lane);
    if (lane < count) ids[lane] = choice.id, weights[lane] = weight;
  }
};

// run(keys) with as many a lane as `experts`, at most kMost, take.
template <int kMost, class Run>
__device__ __forceinline__ void with_keys(int experts, const Run& run) {
  if (experts <= 32) {
    run(LogitKeys<1>());
  } else if (experts <= 128) {
    run(LogitKeys<4>());
  } else {
    run(LogitKeys<kMost / 32>());
  }
}

}  // namespace moesaic::cuda
