// A ring of stages in shared memory, each of two pieces, which a CTA fills ahead of their use: by bulk copies
// from 9.0 on, before by cp.async.
//
// Roles    all threads of the CTA call everything: open(), then fetch(0) to fetch(kStages - 1). Then, for
//          each n: wait(n), the use of stage n % kStages, __syncthreads(), fetch(n + kStages).
// Barriers full[stage]: both bulk copies have landed. cp.async: a thread closes a group in each fetch(), so
//          that waiting counts fetches, and wait() has __syncthreads().
#pragma once

#include "backend/cuda/kernels/ptx/load.cuh"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "backend/cuda/kernels/ptx/bulk_copy.cuh"
#endif

namespace moesaic::cuda {

template <int kStages, int kBytes>
struct PairRing {
  alignas(128) uint8_t first[kStages][kBytes];
  alignas(128) uint8_t second[kStages][kBytes];
  uint64_t full[kStages];

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __device__ void open() {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < kStages; ++i) portable::mbarrier_init(full + i, 1);
    portable::fence_mbarrier_init();
  }
  // one, other: null past the last piece, where nothing is copied.
  // The thread that made the barriers sees them at once. The others meet before their first wait().
  __device__ void fetch(int n, const uint8_t* one, const uint8_t* other) {
    if (one == nullptr || threadIdx.x != 0) return;
    const int stage = n % kStages;
    portable::mbarrier_arrive_expect_tx(full + stage, 2 * kBytes);
    portable::cp_async_bulk(first[stage], one, kBytes, full + stage);
    portable::cp_async_bulk(second[stage], other, kBytes, full + stage);
  }
  __device__ void wait(int n) { portable::mbarrier_wait(full + n % kStages, n / kStages % 2); }
#else
  __device__ void open() {}
  __device__ void fetch(int n, const uint8_t* one, const uint8_t* other) {
    const int stage = n % kStages, step = static_cast<int>(blockDim.x) * 16;
    for (int i = static_cast<int>(threadIdx.x) * 16; one != nullptr && i < kBytes; i += step) {
      cp_async(first[stage] + i, one + i, true);
      cp_async(second[stage] + i, other + i, true);
    }
    cp_async_commit();
  }
  __device__ void wait(int) {
    cp_async_wait<kStages - 1>();
    __syncthreads();
  }
#endif
};

}  // namespace moesaic::cuda
