#include "backend/cuda/runtime/random.h"

namespace moesaic::cuda {
namespace {

// splitmix64's output function (Steele, Lea and Flood 2014).
__device__ uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The sum of four uniform 16-bit numbers has a variance of 4 * 2^32 / 12.
__global__ void random_kernel(float* x, int64_t count, uint64_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint64_t h = mix(seed << 40 ^ static_cast<uint64_t>(i));
  const int sum =
      static_cast<int>((h & 0xFFFF) + (h >> 16 & 0xFFFF) + (h >> 32 & 0xFFFF) + (h >> 48)) - 131070;
  x[i] = static_cast<float>(sum) * 2.643e-5f;
}

}  // namespace

Status fill_random(float* x, int64_t count, uint32_t seed, cudaStream_t stream) {
  random_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(x, count, seed);
  return check(cudaGetLastError(), "random numbers");
}

}  // namespace moesaic::cuda
