// The choice of experts of one row, by a warp.
#pragma once

#include "backend/cuda/kernels.cuh"

namespace moesaic::cuda {

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
  // ids [top_k]: the largest, the lowest index of equals, always distinct; weights: their softmax.
  __device__ void choose(int count, int lane, int32_t* ids, float* weights) {
    constexpr uint32_t kAll = 0xFFFFFFFFu;
    float top = -INFINITY;  // lane k keeps the k-th choice
    int chosen = 0;
    for (int k = 0; k < count; ++k) {
      uint32_t best = 0, id = lane;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (keys[i] > best) best = keys[i], id = lane + 32 * i;
      }
      const uint32_t most = __reduce_max_sync(kAll, best);
      id = __reduce_min_sync(kAll, best == most ? id : kAll);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (lane + 32 * i == id) keys[i] = 0;
      }
      if (lane == k) top = from_ordered_key(most), chosen = static_cast<int>(id);
    }
    const float largest = __shfl_sync(kAll, top, 0);
    const float share = lane < count ? __expf(top - largest) : 0.0f;
    const float sum = warp_sum(share);
    if (lane < count) ids[lane] = chosen, weights[lane] = share / sum;
  }
};

template <int kPerLane>
__device__ inline void top_k(const float* logits, int experts, int count, int lane, int32_t* ids,
                             float* weights) {
  LogitKeys<kPerLane> keys;
  keys.load(logits, experts, lane);
  keys.choose(count, lane, ids, weights);
}

}  // namespace moesaic::cuda
