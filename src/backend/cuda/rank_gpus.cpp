#include "backend/rank_gpus.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/runtime/features.h"

namespace moesaic {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) cudaGetLastError(), value = 0;
  return value;
}

// Two transfers a clock.
double bytes_per_second(int device) {
  return 2e3 * attribute(cudaDevAttrMemoryClockRate, device) *
         attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8;
}

std::string one_only(int device) { return cuda::features_of_device(device).status().message(); }

std::vector<int> reached_from(int device, int devices) {
  std::vector<int> reached;
  for (int peer = 0; peer < devices; ++peer) {
    int reaches = 0;
    if (peer != device && cudaDeviceCanAccessPeer(&reaches, device, peer) != cudaSuccess)
      cudaGetLastError(), reaches = 0;
    if (reaches != 0) reached.push_back(peer);
  }
  return reached;
}

}  // namespace

// Only the first GPU gets a context, which one_only() needs. A context takes memory, and the other GPUs may
// not be chosen.
std::vector<RankGpu> rank_gpus() {
  prepare_cuda_ranks();
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) cudaGetLastError(), devices = 0;
  std::vector<RankGpu> gpus;
  for (int i = 0; i < devices; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    gpus.push_back({.index = i,
                    .kind = fmt::format("{} ({}.{}, {} multiprocessors)", p.name, p.major, p.minor,
                                        p.multiProcessorCount),
                    .one_only = gpus.empty() ? one_only(i) : std::string(),
                    .memory = static_cast<double>(p.totalGlobalMem),
                    .bytes_per_second = bytes_per_second(i),
                    .reaches = reached_from(i, devices)});
  }
  return gpus;
}

}  // namespace moesaic
