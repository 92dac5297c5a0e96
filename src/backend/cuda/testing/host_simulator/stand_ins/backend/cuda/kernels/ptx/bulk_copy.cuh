// kernels/ptx/bulk_copy.cuh on the host.
#pragma once

#include "backend/cuda/kernels/ptx/async_copy.cuh"

namespace moesaic::cuda::portable {

using sm90::cp_async_bulk;
using sm90::fence_mbarrier_init;
using sm90::fence_proxy_async;
using sm90::mbarrier_arrive_expect_tx;
using sm90::mbarrier_init;
using sm90::mbarrier_wait;

}  // namespace moesaic::cuda::portable
