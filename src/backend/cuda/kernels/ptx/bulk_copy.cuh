// Bulk copies to a CTA's own shared memory and the barriers they complete on, for all devices from 9.0 on.
#pragma once

#include "backend/cuda/kernels/ptx/async_copy.cuh"

namespace moesaic::cuda::portable {

using sm90::fence_mbarrier_init;
using sm90::fence_proxy_async;
using sm90::mbarrier_arrive_expect_tx;
using sm90::mbarrier_init;
using sm90::mbarrier_wait;

// A multiple of 16 bytes. On SM120 the form for clusters (async_copy.cuh) asks at run time whose memory it
// is, with a system call for any but its own.
__device__ inline void cp_async_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   sm90::smem_addr(to)),
               "l"(from), "r"(bytes), "r"(sm90::smem_addr(barrier))
               : "memory");
}

}  // namespace moesaic::cuda::portable
