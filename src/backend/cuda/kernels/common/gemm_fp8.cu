#include "backend/cuda/kernels/common/gemm_fp8.h"
#include "backend/cuda/kernels/common/gemm_large_m.cuh"
#include "backend/cuda/kernels/ptx/e4m3.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;

// A thread has 16 bytes of the codes.
__global__ void __launch_bounds__(kThreads)
    to_fp8_kernel(const uint4* x, uint4* codes, int64_t chunks, float scale) {
  wait_for_predecessor();
  launch_dependents();
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (chunk >= chunks) return;
  const uint4* const from = x + chunk / 4 * 8 + chunk % 4;
  const auto four = [scale](uint32_t low, uint32_t high) {
    return __byte_perm(f16_to_e4m3(low, scale), f16_to_e4m3(high, scale), 0x1504);
  };
  const uint4 a = from[0], b = from[4];
  codes[chunk] = {four(a.x, a.y), four(a.z, a.w), four(b.x, b.y), four(b.z, b.w)};
}

}  // namespace

Status to_fp8(Activations& x, int rows, int cols, float scale, void* codes, cudaStream_t stream) {
  const int64_t chunks = int64_t{rows} * cols / 16;
  const void* const from = x.x;
  x.x = codes, x.fp8 = true, x.factor /= scale;
  return launch(to_fp8_kernel, dim3(static_cast<unsigned>((chunks + kThreads - 1) / kThreads)),
                dim3(kThreads), 0, stream, static_cast<const uint4*>(from), static_cast<uint4*>(codes),
                chunks, scale);
}

template <class Epilogue>
Status gemm_fp8(const Matrix& w, const Activations& x, const Epilogue& out, cudaStream_t stream) {
  if (w.kind != Kind::kMxfp4 || w.cols % kFp8Columns != 0 || x.tile < 64)
    return no_kernel("gemm in FP8", w, x.tokens);
  return x.tile == 64 ? launch_large_m<Mxfp4Fp8Source, 64>(w, x, out, stream)
                      : launch_large_m<Mxfp4Fp8Source, 128>(w, x, out, stream);
}
template Status gemm_fp8(const Matrix&, const Activations&, const Store&, cudaStream_t);
template Status gemm_fp8(const Matrix&, const Activations&, const SwiGlu&, cudaStream_t);

}  // namespace moesaic::cuda
