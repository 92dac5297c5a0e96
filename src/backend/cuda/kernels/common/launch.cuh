// Every kernel uses these: programmatic dependent launch, sums over warps and blocks, SwiGLU, float keys.
//
// Barriers block_sum() meets all threads of the CTA twice; all of them must call it. warp_sum() needs all
//          lanes.
// Ordering wait_for_predecessor() says what may be read when.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace moesaic::cuda {

// Programmatic dependent launch: until wait_for_predecessor() returns, nothing that the device wrote may be
// read. Every CTA must call it, also those without work: a kernel that ends before its predecessor
// has ended would let its successor overtake both.
__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel's CTAs may take the room that this kernel leaves.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// gate sigmoid(alpha gate) (up + offset) of both with their biases, gate clamped from above, up from both
// sides.
__device__ inline float swiglu(float gate, float up, float alpha, float limit, float offset) {
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  return gate / (1.0f + __expf(-alpha * gate)) * (up + offset);
}

// The sum over a CTA of whole warps, in a fixed order, in every thread. scratch: a float a warp.
__device__ inline float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < warps; ++w) sum += scratch[w];
  __syncthreads();
  return sum;
}

// Larger floats have larger keys; both zeros have one. No key is 0.
__device__ inline uint32_t ordered_key(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float from_ordered_key(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7FFFFFFFu : ~key);
}

}  // namespace moesaic::cuda
