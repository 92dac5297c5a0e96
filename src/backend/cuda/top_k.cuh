// The choice of experts of one row, by a warp.
#pragma once

#include "backend/cuda/kernels.cuh"

namespace moesaic::cuda {

// ids [top_k]: the largest logits, the lowest index of equals, always distinct; weights: their softmax. A
// lane holds kPerLane logits. Logits that are NaN or infinite have left a fault elsewhere: here they only
// have to end in experts that exist.
template <int kPerLane>
__device__ inline void top_k(const float* logits, int experts, int count, int lane, int32_t* ids,
                             float* weights) {
  constexpr float kMost = 3.0e38f;
  float mine[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    mine[i] = lane + 32 * i < experts ? fminf(fmaxf(logits[lane + 32 * i], -kMost), kMost) : -INFINITY;
  float top = -INFINITY;  // lane k keeps the k-th choice
  int chosen = 0;
  for (int k = 0; k < count; ++k) {
    float best = -INFINITY;
    int id = lane;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (mine[i] > best) best = mine[i], id = lane + 32 * i;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, best, offset);
      const int other_id = __shfl_xor_sync(0xFFFFFFFFu, id, offset);
      if (other > best || (other == best && other_id < id)) best = other, id = other_id;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i == id) mine[i] = -INFINITY;
    }
    if (lane == k) top = best, chosen = id;
  }
  const float largest = __shfl_sync(0xFFFFFFFFu, top, 0);
  const float share = lane < count ? __expf(top - largest) : 0.0f;
  const float sum = warp_sum(share);
  if (lane < count) ids[lane] = chosen, weights[lane] = share / sum;
}

}  // namespace moesaic::cuda
