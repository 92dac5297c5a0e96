// Which slots a thread block works on.
#pragma once

#include "backend/cuda/kernels/sm120/operands.h"

namespace moesaic::cuda::sm120a {

// Of blockIdx.y; none: count is 0.
__device__ inline Job job_of(const Tokens& x) {
  if (x.jobs == nullptr) {
    const int first = static_cast<int>(blockIdx.y) * x.tile;
    return {0, first, min(x.tile, x.count - first), first};
  }
  if (static_cast<int>(blockIdx.y) >= __ldcg(x.job_count)) return {};
  const int4 job = __ldcg(reinterpret_cast<const int4*>(x.jobs) + blockIdx.y);
  return {job.x, job.y, job.z, job.w};
}

}  // namespace moesaic::cuda::sm120a
