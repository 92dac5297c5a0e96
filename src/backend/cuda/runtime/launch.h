// Launches of kernels; included by device.h. The host simulator has a launch.h of its own.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// `size` neighbours in x.
inline cudaLaunchAttribute cluster_attribute(int size) {
  cudaLaunchAttribute a{};
  a.id = cudaLaunchAttributeClusterDimension;
  a.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
  return a;
}

inline cudaLaunchAttribute programmatic_attribute() {
  cudaLaunchAttribute a{};
  a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  a.val.programmaticStreamSerializationAllowed = 1;
  return a;
}

// Launches with programmatic dependent launch: the kernel may begin while its predecessor on the stream still
// runs, and must call wait_for_predecessor() (launch.cuh) before it touches anything that was written on the
// device. launch_clusters: `cluster` neighbours in x share their memory (Hopper's thread block clusters); 0:
// no clusters, and with them no barrier of one.
template <typename... Params, typename... Args>
Status launch_clusters(int cluster, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                       cudaStream_t stream, Args&&... args) {
  note_launch(reinterpret_cast<const void*>(kernel), grid, block, shared);
  cudaLaunchAttribute attributes[2] = {programmatic_attribute(), cluster_attribute(cluster)};
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = stream;
  config.attrs = attributes, config.numAttrs = cluster > 0 ? 2 : 1;
  return check(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...), "launch");
}
// The same without clusters, for a kernel whose CTAs wait for each other: either all of them run, or none
// does until there is room (a cooperative launch).
template <typename... Params, typename... Args>
Status launch_together(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                       Args&&... args) {
  note_launch(reinterpret_cast<const void*>(kernel), grid, block, shared);
  cudaLaunchAttribute attributes[2] = {programmatic_attribute(), {}};
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = stream;
  config.attrs = attributes, config.numAttrs = 2;
  return check(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...), "launch");
}
template <typename... Params, typename... Args>
Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
              Args&&... args) {
  return launch_clusters(0, kernel, grid, block, shared, stream, std::forward<Args>(args)...);
}
// The kernel begins when everything before it on the stream has ended.
template <typename... Params, typename... Args>
Status launch_alone(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                    Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = stream;
  return check(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...), "launch");
}

}  // namespace moesaic::cuda
