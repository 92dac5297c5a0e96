#include <algorithm>
#include <cmath>

#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/free_memory.h"
#include "backend/cuda/runtime/launch.h"

namespace moesaic::cuda {
namespace {

#ifdef __CUDA_ARCH__
__device__ int code_version = __CUDA_ARCH__ / 10;
#else
__device__ int code_version;
#endif

// One CTA of 1,024 threads a multiprocessor, eight 16-byte loads of each in flight: 4.42 TB/s on an H200,
// where smaller CTAs give 4.1 to 4.2.
__global__ void __launch_bounds__(1024) read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * 1024;
  for (int64_t i = blockIdx.x * 1024 + threadIdx.x; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(data + i + j * step);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x5EED5EEDu) *sink = sum;
}

// The fastest of five passes in milliseconds, after one to warm up.
cudaError_t time_passes(void* data, size_t bytes, int processors, cudaStream_t stream, float& best) {
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) cudaEventCreate(&event);
  cudaError_t code = cudaMemsetAsync(data, 1, bytes, stream);
  best = INFINITY;
  for (int pass = 0; pass < 6 && code == cudaSuccess; ++pass) {
    cudaEventRecord(events[0], stream);
    read_kernel<<<processors, 1024, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16,
                                                 static_cast<uint32_t*>(data));
    cudaEventRecord(events[1], stream);
    code = cudaEventSynchronize(events[1]);
    float ms = 0;
    cudaEventElapsedTime(&ms, events[0], events[1]);
    if (pass > 0) best = std::min(best, ms);
  }
  for (const cudaEvent_t event : events) cudaEventDestroy(event);
  return code == cudaSuccess ? cudaGetLastError() : code;
}

}  // namespace

cudaError_t probe_code() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, read_kernel);
}

cudaError_t read_code_version(int& version) {
  return cudaMemcpyFromSymbol(&version, code_version, sizeof(version));
}

bool runs_clusters(int ctas, cudaStream_t stream) {
  cudaLaunchAttribute cluster = cluster_attribute(ctas);
  cudaLaunchConfig_t config{};
  config.gridDim = ctas, config.blockDim = 1024, config.attrs = &cluster, config.numAttrs = 1;
  config.stream = stream;
  int most = 0;
  cudaError_t code = cudaFuncSetAttribute(read_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (code == cudaSuccess) code = cudaOccupancyMaxActiveClusters(&most, read_kernel, &config);
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess && most > 0;
}

Result<double> measure_read_bandwidth(cudaStream_t stream) {
  int device = 0, processors = 0;
  void* data = nullptr;
  float ms = 0;
  const size_t bytes =
      std::min<size_t>(2u << 30, static_cast<size_t>(free_memory() / 4)) / (1u << 20) * (1u << 20);
  cudaError_t code = cudaGetDevice(&device);
  if (code == cudaSuccess) code = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (code == cudaSuccess) code = cudaMalloc(&data, bytes);
  if (code == cudaSuccess) code = time_passes(data, bytes, processors, stream, ms);
  cudaFree(data);
  if (code != cudaSuccess) return check(code, "measuring the bandwidth");
  return static_cast<double>(bytes) / 1e6 / ms;
}

}  // namespace moesaic::cuda
