// A layer's rows go to the host's experts, and the outputs come back. Contracts: hand_over.h, and
// backend/hand_over.h for both sides.
//
// Shapes   normed, x, out [rows, hidden] F32, ids and weights [rows, top_k]; hidden a multiple of 4
// Grid     up to kCtas CTAs of at most kThreads threads, a row at a time
//
// Barriers __syncthreads() only.
// Ordering hand_over_kernel: each CTA stores its rows, then fences for the whole system and counts itself as
//          arrived; the last one stores `posted` behind another such fence (release). take_back_kernel: one
//          thread of each CTA polls `answered` (acquire), and the CTA reads `out` behind a barrier. The next
//          hand-over's stores come behind this kernel's end.
//          Both let their successor begin at once: it loads weights while the host computes.
// Resident No CTA waits for another, but all of take_back_kernel for the host. A wait of 56 to 60 s gives up
//          (patience.cuh). The server's thread needs nothing of the device meanwhile.
//
//          With experts here, their kernels stand between the two: they begin while the host computes.
// Bytes    8 hidden a row over PCIe, half of them in each direction.
// Floor    a store and a polled load over PCIe, some 2 us together, and what the host computes.
#include <algorithm>

#include "backend/cuda/kernels/common/gave_up.h"
#include "backend/cuda/kernels/common/hand_over.h"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/patience.cuh"
#include "backend/cuda/kernels/ptx/system_scope.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kCtas = 16;  // their loads fill PCIe; each of them polls

__device__ __forceinline__ uint32_t epoch_of(const HostLayer& p) {
  return static_cast<uint32_t>(*p.epoch + p.index);
}
__device__ __forceinline__ bool has_fault(const HostLayer& p) {
  return *static_cast<const volatile int*>(p.fault) != 0;
}

// The choice as the host is to see it; that of an expert here is left for its kernels.
__device__ int32_t hand_id(const HostLayer& p, int choice) {
  const int32_t id = p.ids[choice];
  if (p.hot_slots == nullptr) return id;
  const int32_t slot = p.hot_slots[id];
  p.hot_ids[choice] = slot;
  return slot < 0 ? id : computed_there(id);
}

__device__ void store_row(const HostLayer& p, int row) {
  const int quads = p.hidden / 4;
  const auto* from = reinterpret_cast<const float4*>(p.normed) + static_cast<int64_t>(row) * quads;
  auto* to = reinterpret_cast<float4*>(p.at.normed) + static_cast<int64_t>(row) * quads;
  for (int i = threadIdx.x; i < quads; i += blockDim.x) to[i] = from[i];
  for (int i = row * p.top_k + threadIdx.x; i < (row + 1) * p.top_k; i += blockDim.x)
    p.at.ids[i] = hand_id(p, i), p.at.weights[i] = p.weights[i];
}

__global__ void __launch_bounds__(kThreads) hand_over_kernel(const HostLayer p) {
  wait_for_predecessor();
  launch_dependents();
  const bool fault = has_fault(p);
  for (int row = blockIdx.x; row < p.rows && !fault; row += gridDim.x) store_row(p, row);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x > 0) return;
  if (gridDim.x > 1) {
    if (atomicAdd(p.arrived, 1) != static_cast<int>(gridDim.x) - 1) return;
    __threadfence();
    *p.arrived = 0;
  }
  p.at.words->layer = p.layer, p.at.words->rows = fault ? 0 : p.rows;
  st_release_system(&p.at.words->posted, epoch_of(p));
}

// One thread waits. False: there is no output, and the fault says why.
__device__ bool wait_for_host(const HostLayer& p) {
  if (has_fault(p)) return false;
  const uint32_t epoch = epoch_of(p);
  Patience patience;
  while (!host_has_stored(&p.at.words->answered, epoch)) {
    if (patience.ended_for_host(p.fault)) return false;
  }
  if (p.at.words->failed == 0) return true;
  atomicCAS(p.fault, 0, kHostFailed);
  return false;
}

// Adds the output of the experts here to the row's i-th float4.
__device__ void add_own(const HostLayer& p, int row, int i, float4& y) {
  for (int k = row * p.top_k; k < (row + 1) * p.top_k; ++k) {
    if (p.hot_ids[k] < 0) continue;
    const float weight = p.weights[k];
    const float4 e = reinterpret_cast<const float4*>(p.expert_out +
                                                     static_cast<int64_t>(p.permuted_rows[k]) * p.hidden)[i];
    y = {fmaf(weight, e.x, y.x), fmaf(weight, e.y, y.y), fmaf(weight, e.z, y.z), fmaf(weight, e.w, y.w)};
  }
}

__global__ void __launch_bounds__(kThreads) take_back_kernel(const HostLayer p) {
  __shared__ bool there;
  wait_for_predecessor();
  launch_dependents();
  if (threadIdx.x == 0) there = wait_for_host(p);
  __syncthreads();
  if (!there) return;
  const int quads = p.hidden / 4;
  for (int row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const auto* from = reinterpret_cast<const float4*>(p.at.out) + static_cast<int64_t>(row) * quads;
    auto* x = reinterpret_cast<float4*>(p.x) + static_cast<int64_t>(row) * quads;
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
      float4 y = from[i];
      if (p.hot_slots != nullptr) add_own(p, row, i, y);
      const float4 sum = x[i];
      x[i] = {sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w};
    }
  }
}

dim3 grid_of(const HostLayer& p) { return dim3(std::min(p.rows, kCtas)); }
// Whole warps, a float4 each.
dim3 block_of(const HostLayer& p) { return dim3(std::min(kThreads, (p.hidden / 4 + 31) / 32 * 32)); }

}  // namespace

Status hand_over(const HostLayer& p, cudaStream_t stream) {
  return launch(hand_over_kernel, grid_of(p), block_of(p), 0, stream, p);
}

Status take_back(const HostLayer& p, cudaStream_t stream) {
  return launch(take_back_kernel, grid_of(p), block_of(p), 0, stream, p);
}

}  // namespace moesaic::cuda
