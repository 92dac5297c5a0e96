#include "backend/cuda/runtime/free_memory.h"

#include <cmath>

#include "base/memory.h"

namespace moesaic::cuda {

double free_memory(const MemoryFigures& figures) {
  return figures.integrated && std::isfinite(figures.host_available) ? figures.host_available
                                                                     : figures.device_free;
}

double free_memory() {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError(), free = 0;
  return free_memory({.integrated = shares_host_memory(),
                      .host_available = available_host_memory(),
                      .device_free = static_cast<double>(free)});
}

}  // namespace moesaic::cuda
