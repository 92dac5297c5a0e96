// runtime/launch.h on the host: a kernel runs in the simulator when it is launched, and has ended when that
// returns.
#pragma once

#include <functional>
#include <span>

#include "backend/cuda/runtime/check.h"
#include "backend/cuda/testing/host_simulator/captures.h"
#include "backend/cuda/testing/host_simulator/thread_block.h"

namespace moesaic::cuda {

namespace on_host {
// The dynamic shared memory of the kernels of this source file.
[[maybe_unused]] static std::span<uint8_t> shared_memory;
// Kernels that take most of it have one CTA a multiprocessor, and may wait for one another.
inline constexpr size_t kAtOnceBytes = 100 << 10;
}  // namespace on_host

template <typename... Params, typename... Args>
static Status launch_clusters(int cluster, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                              cudaStream_t, Args&&... args) {
  on_host::captures().begin_launch();
  const bool ended = on_host::run_at_once(
      grid.x, static_cast<int>(block.x), on_host::shared_memory.first(shared),
      [&] { kernel(Params(args)...); }, static_cast<unsigned>(cluster));
  return ended ? Status() : Status(StatusCode::kInternal, "the kernel's threads wait forever");
}
template <typename... Params, typename... Args>
static Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t,
                     Args&&... args) {
  on_host::captures().begin_launch();
  if (grid.x * grid.y * grid.z == 0 || block.x == 0 || block.x > 1024)
    return Status(StatusCode::kInternal, "a grid or block of no or too many threads");
  const std::function<void()> run = [&] { kernel(Params(args)...); };
  const int threads = static_cast<int>(block.x);
  const bool ended = shared >= on_host::kAtOnceBytes
                         ? on_host::run_at_once(grid.x, threads, on_host::shared_memory.first(shared), run)
                         : on_host::run_in_turn(grid, threads, on_host::shared_memory, run);
  return ended ? Status() : Status(StatusCode::kInternal, "the kernel's threads wait forever");
}
template <typename... Params, typename... Args>
static Status launch_together(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                              cudaStream_t stream, Args&&... args) {
  if (!on_host::captures().may_launch_together()) return Status(StatusCode::kInternal, "too large");
  return launch(kernel, grid, block, shared, stream, std::forward<Args>(args)...);
}
template <typename... Params, typename... Args>
static Status launch_alone(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                           cudaStream_t stream, Args&&... args) {
  return launch(kernel, grid, block, shared, stream, std::forward<Args>(args)...);
}

}  // namespace moesaic::cuda
