// Bulk copies to a thread block's own shared memory and the barriers they complete on, for Hopper and SM120.
#pragma once

#include "backend/cuda/kernels/ptx/async_copy.cuh"

namespace moesaic::cuda::sm120a {

using sm90a::fence_mbarrier_init;
using sm90a::mbarrier_arrive_expect_tx;
using sm90a::mbarrier_init;
using sm90a::mbarrier_wait;

// A multiple of 16 bytes. On SM120 the form for clusters (async_copy.cuh) asks at run time whose memory it
// is, with a system call for any but its own.
__device__ inline void cp_async_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   sm90a::smem_addr(to)),
               "l"(from), "r"(bytes), "r"(sm90a::smem_addr(barrier))
               : "memory");
}

}  // namespace moesaic::cuda::sm120a
