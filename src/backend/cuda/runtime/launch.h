// Launches of kernels; included by device.h. The host simulator has a launch.h of its own.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "backend/cuda/runtime/check.h"
#include "backend/cuda/runtime/features.h"

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

inline cudaLaunchAttribute cooperative_attribute() {
  cudaLaunchAttribute a{};
  a.id = cudaLaunchAttributeCooperative;
  a.val.cooperative = 1;
  return a;
}

// A launch's configuration, with room for its attributes.
class LaunchConfig {
 public:
  LaunchConfig(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    config_.gridDim = grid, config_.blockDim = block, config_.dynamicSmemBytes = shared;
    config_.stream = stream, config_.attrs = attributes_;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
  void add(const cudaLaunchAttribute& attribute) { attributes_[config_.numAttrs++] = attribute; }
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_{};
};

// Launches with programmatic dependent launch, where early_launches() (features.h): the kernel may begin
// while its predecessor on the stream still runs, and must call wait_for_predecessor() (launch.cuh) before it
// touches anything that was written on the device. launch_clusters: `cluster` neighbours in x share their
// memory (Hopper's thread block clusters); 0: no clusters, and with them no barrier of one.
template <typename... Params, typename... Args>
Status launch_clusters(int cluster, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                       cudaStream_t stream, Args&&... args) {
  note_launch(reinterpret_cast<const void*>(kernel), grid, block, shared);
  LaunchConfig config(grid, block, shared, stream);
  if (early_launches()) config.add(programmatic_attribute());
  if (cluster > 0) config.add(cluster_attribute(cluster));
  return check(cudaLaunchKernelEx(config.get(), kernel, Params(std::forward<Args>(args))...), "launch");
}
// The same without clusters, for a kernel whose CTAs wait for each other: either all of them run, or none
// does until there is room (a cooperative launch).
template <typename... Params, typename... Args>
Status launch_together(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                       Args&&... args) {
  note_launch(reinterpret_cast<const void*>(kernel), grid, block, shared);
  LaunchConfig config(grid, block, shared, stream);
  if (early_launches()) config.add(programmatic_attribute());
  config.add(cooperative_attribute());
  return check(cudaLaunchKernelEx(config.get(), kernel, Params(std::forward<Args>(args))...), "launch");
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
  const LaunchConfig config(grid, block, shared, stream);
  return check(cudaLaunchKernelEx(config.get(), kernel, Params(std::forward<Args>(args))...), "launch");
}

}  // namespace moesaic::cuda
