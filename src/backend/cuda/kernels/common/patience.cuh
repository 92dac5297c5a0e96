// How long a CTA waits for what another one writes, on this device or another, or the host. Such a wait ends
// by itself where the CTAs run as the kernel's comment says they do. Where they do not (the device has no
// room for one of them, two streams write to the same scratch memory, or another device is lost), the kernel
// gives up instead of keeping the device for ever.
#pragma once

#include "backend/cuda/kernels/common/gave_up.h"
#include "backend/cuda/kernels/ptx/async_copy.cuh"

namespace moesaic::cuda {

inline constexpr uint32_t kPatienceTicks = 3;       // begun ones: 8.6 to 12.9 s
inline constexpr uint32_t kRankPatienceTicks = 2;   // for another rank: 4.3 to 8.6 s
inline constexpr uint32_t kHostPatienceTicks = 14;  // for the host, which computes meanwhile: 56 to 60 s

// Each thread has one for each of its waits. The fast path of a wait does not touch it; in the loop it costs
// a counter.
class Patience {
 public:
  // Call it once for each look. True: give up; `fault` says that somebody has, and for what (gave_up.h). A
  // fault that is there already ends the wait, so that a kernel with many waits, and those behind it, give up
  // only once.
  __device__ __forceinline__ bool ended(int* fault, bool of_rank = false) {
    return ended(fault, of_rank ? kRankPatienceTicks : kPatienceTicks, of_rank ? kRankAway : kGaveUp);
  }
  __device__ __forceinline__ bool ended_for_host(int* fault) {
    return ended(fault, kHostPatienceTicks, kHostAway);
  }

 private:
  __device__ __forceinline__ bool ended(int* fault, uint32_t most_ticks, int code) {
    if (++looks_ % sm90::kLooksAtOnce != 0) return false;
    const uint32_t now = sm90::clock_ticks();
    if (looks_ == sm90::kLooksAtOnce) began_ = now;
    if (*static_cast<volatile int*>(fault) != 0) return true;
    if (now - began_ < most_ticks) return false;
    *static_cast<volatile int*>(fault) = code;
    return true;
  }

  uint32_t looks_ = 0, began_ = 0;
};

}  // namespace moesaic::cuda
