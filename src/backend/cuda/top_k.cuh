// The choice of experts of one row, by a warp.
#pragma once

#include <cstdint>

namespace moesaic::cuda {

inline constexpr int kMaxTopK = 16;

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
  float top[kMaxTopK];
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
    top[k] = best;
    if (lane == 0) ids[k] = id;
  }
  float sum = 0;
  for (int k = 0; k < count; ++k) sum += __expf(top[k] - top[0]);
  for (int k = lane; k < count; k += 32) weights[k] = __expf(top[k] - top[0]) / sum;
}

}  // namespace moesaic::cuda
