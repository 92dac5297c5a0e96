// Names that the CUDA compiler knows by itself, for a host compiler; included before a kernel's own headers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/testing/host_simulator/thread_block.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __maxnreg__
#define __maxnreg__(...)
#undef __noinline__
#define __noinline__
#undef __forceinline__
#define __forceinline__ inline
// All fibers of a block run in one thread. A kernel's own `extern` arrays are defined in kernels/.
#undef __shared__
#define __shared__ thread_local
#define threadIdx (moesaic::cuda::on_host::ThreadBlock::mine().thread_index())
#define blockIdx (moesaic::cuda::on_host::ThreadBlock::mine().index())
#define blockDim (moesaic::cuda::on_host::ThreadBlock::mine().size())
#define gridDim (moesaic::cuda::on_host::ThreadBlock::mine().grid())

using std::isfinite, std::max, std::min;

// ---- of a block or a warp; every warp is whole ----

inline void __syncthreads() { moesaic::cuda::on_host::ThreadBlock::mine().meet_block(); }
inline void __syncwarp() { moesaic::cuda::on_host::ThreadBlock::mine().meet_warp(); }
inline void __threadfence() {}
inline void __threadfence_system() {}
template <class T>
T __shfl_sync(unsigned, T x, int lane, int width = 32) {
  const int first = moesaic::cuda::on_host::ThreadBlock::mine().lane() & -width;
  return moesaic::cuda::on_host::ThreadBlock::mine().exchange(x)[first + (lane & (width - 1))];
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32) {
  return __shfl_sync(mask, x, moesaic::cuda::on_host::ThreadBlock::mine().lane() ^ bits, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, int lanes) {
  const int lane = moesaic::cuda::on_host::ThreadBlock::mine().lane();
  return __shfl_sync(mask, x, lane < lanes ? lane : lane - lanes);
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, int lanes) {
  const int lane = moesaic::cuda::on_host::ThreadBlock::mine().lane();
  return __shfl_sync(mask, x, lane + lanes > 31 ? lane : lane + lanes);
}
template <class T>
unsigned __match_any_sync(unsigned, T x) {
  const auto all = moesaic::cuda::on_host::ThreadBlock::mine().exchange(x);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned{all[lane] == x} << lane;
  return bits;
}
inline unsigned __ballot_sync(unsigned, bool x) {
  const auto all = moesaic::cuda::on_host::ThreadBlock::mine().exchange(x);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned{all[lane]} << lane;
  return bits;
}
inline unsigned __reduce_max_sync(unsigned, unsigned x) {
  const auto all = moesaic::cuda::on_host::ThreadBlock::mine().exchange(x);
  for (int lane = 0; lane < 32; ++lane) x = std::max(x, all[lane]);
  return x;
}
inline unsigned __reduce_add_sync(unsigned, unsigned x) {
  const auto all = moesaic::cuda::on_host::ThreadBlock::mine().exchange(x);
  unsigned sum = 0;
  for (int lane = 0; lane < 32; ++lane) sum += all[lane];
  return sum;
}
inline bool __all_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) == 0xFFFFFFFFu; }
inline unsigned __reduce_min_sync(unsigned mask, unsigned x) { return ~__reduce_max_sync(mask, ~x); }

// Fibers of one thread of the host: nothing comes between.
inline int atomicAdd(int* p, int x) { return std::exchange(*p, *p + x); }
inline unsigned atomicAdd(unsigned* p, unsigned x) { return std::exchange(*p, *p + x); }
inline int atomicCAS(int* p, int old, int x) { return *p == old ? std::exchange(*p, x) : *p; }
inline int atomicMax(int* p, int x) { return std::exchange(*p, std::max(*p, x)); }
inline unsigned atomicOr(unsigned* p, unsigned x) { return std::exchange(*p, *p | x); }

// ---- of a thread ----

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __frcp_rn(float x) { return 1 / x; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
#define __expf(x) std::exp(x)
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
}
inline unsigned viaddmax_s16x2(unsigned x, unsigned y, unsigned z) {
  unsigned result = 0;
  for (int h = 0; h < 32; h += 16) {
    const auto sum = static_cast<int16_t>((x >> h) + (y >> h));
    result |= unsigned{static_cast<uint16_t>(std::max(sum, static_cast<int16_t>(z >> h)))} << h;
  }
  return result;
}
#define __viaddmax_s16x2 viaddmax_s16x2
