// gemm() of ops/linear.h: which instance of gemm_small_m.cuh or gemm_large_m.cuh a weight format, a tile and
// an epilogue are computed by, and its grid.
#include "backend/cuda/kernels/common/gemm.h"
#include "backend/cuda/kernels/common/gemm_fp8.h"
#include "backend/cuda/kernels/common/gemm_large_m.cuh"
#include "backend/cuda/kernels/common/gemm_small_m.cuh"

namespace moesaic::cuda {
namespace {

template <class Source, int kTiles, class Epilogue>
Status run_small_m(const Matrix& w, const Activations& x, const Epilogue& epilogue, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(float) * kSmallMWarps * 8 * kTiles * kRowStride;
  static_assert(kShared == gemm_shared_bytes(8 * kTiles) && kShared <= 48 * 1024);
  return launch(gemm_small_m_kernel<Source, kTiles, Epilogue>,
                dim3(w.weight_tiles, token_blocks(x, 8 * kTiles)), dim3(kSmallMWarps * 32), kShared, stream,
                params_of<Source>(w, x), epilogue);
}

template <class Source, class Epilogue>
Status run_tile(const Matrix& w, const Activations& x, const Epilogue& epilogue, cudaStream_t stream) {
  if (x.tile <= 8) return run_small_m<Source, 1>(w, x, epilogue, stream);
  if (x.tile <= 16) return run_small_m<Source, 2>(w, x, epilogue, stream);
  if (x.tile <= 32) return run_small_m<Source, 4>(w, x, epilogue, stream);
  if (x.tile <= 64) return launch_large_m<Source, 64>(w, x, epilogue, stream);
  return launch_large_m<Source, 128>(w, x, epilogue, stream);
}

template <class Epilogue>
Status run_kind(const Matrix& w, const Activations& x, const Epilogue& epilogue, cudaStream_t stream) {
  return with_source(
      w.kind, [&]<class Source>() { return run_tile<Source>(w, x, epilogue, stream); },
      [&] { return no_kernel("gemm", w, x.tokens); });  // in quads: kernels/sm120/gemm.h's
}

}  // namespace

Status gemm(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream) {
  return x.fp8 ? gemm_fp8(w, x, out, stream) : run_kind(w, x, out, stream);
}
Status gemm(const Matrix& w, const Activations& x, const SwiGlu& out, cudaStream_t stream) {
  return x.fp8 ? gemm_fp8(w, x, out, stream) : run_kind(w, x, out, stream);
}
Status gemm(const Matrix& w, const Activations& x, const Qkv& out, cudaStream_t stream) {
  return run_kind(w, x, out, stream);
}

}  // namespace moesaic::cuda
