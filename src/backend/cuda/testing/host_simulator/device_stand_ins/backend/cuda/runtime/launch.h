// runtime/launch.h on the host: a kernel runs when it is launched, its blocks one after the other.
#pragma once

#include <utility>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/testing/host_simulator/thread_block.h"

namespace moesaic::cuda {

template <typename... Params, typename... Args>
Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t, cudaStream_t, Args&&... args) {
  const bool ended = on_host::run_in_turn(grid, static_cast<int>(block.x), {},
                                          [&] { kernel(Params(std::forward<Args>(args))...); });
  return ended ? Status() : Status(StatusCode::kInternal, "threads of a kernel wait forever");
}
template <typename... Params, typename... Args>
Status launch_alone(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                    Args&&... args) {
  return launch(kernel, grid, block, shared, stream, std::forward<Args>(args)...);
}

}  // namespace moesaic::cuda
