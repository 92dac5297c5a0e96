#include "backend/cuda/sm120a/gemm.h"
#include "backend/cuda/sm120a/gemm_few.cuh"
#include "backend/cuda/sm120a/gemm_many.cuh"

namespace moesaic::cuda::sm120a {
namespace {

Product product_of(const Weights& w, const Tokens& x, Tile tile) {
  return {.weights = w.data,
          .units = w.units,
          .blocks = x.cols / kBlock,
          .tokens = x.data,
          .jobs = x.jobs,
          .job_count = x.job_count,
          .whole = tile == Tile::kCapacity128};
}

template <typename... Params>
Status run(void (*kernel)(Params...), const Product& p, int units, int most_jobs, int warps, size_t shared,
           cudaStream_t stream, const auto& epilogue) {
  const auto blocks = static_cast<unsigned>((p.units + units - 1) / units);
  return launch(kernel, dim3(blocks, most_jobs), dim3(warps * 32), shared, stream, p, epilogue);
}

template <int kGroups, int kUnits, class Epilogue>
Status run_few(const Product& p, int most_jobs, const Epilogue& epilogue, cudaStream_t stream) {
  return run(few_kernel<kGroups, kUnits, Epilogue>, p, kUnits, most_jobs, kFewWarps,
             kFewShared<kGroups, kUnits>, stream, epilogue);
}

template <int kTokens, int kUnits, int kStages, class Epilogue>
Status run_many(const Product& p, int most_jobs, const Epilogue& epilogue, cudaStream_t stream) {
  constexpr size_t kShared = ManyTile<kTokens, kUnits, kStages>::kShared;
  const auto kernel = many_kernel<kTokens, kUnits, kStages, Epilogue>;
  // Once for each kernel; more than 48 KB are to be asked for.
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  if (allowed != cudaSuccess) return check(allowed, "experts");
  return run(kernel, p, kUnits, most_jobs, kManyWarps, kShared, stream, epilogue);
}

// kUnits: of a block for few tokens. SwiGLU's blocks of 32 values need two.
template <int kUnits, class Epilogue>
Status run_tile(const Weights& w, const Tokens& x, Tile tile, const Epilogue& epilogue, cudaStream_t stream) {
  const Product p = product_of(w, x, tile);
  switch (tile) {
    case Tile::k8:
      return run_few<1, kUnits>(p, x.most_jobs, epilogue, stream);
    case Tile::k16:
      return run_few<2, kUnits>(p, x.most_jobs, epilogue, stream);
    case Tile::k32:
      return run_few<4, kUnits>(p, x.most_jobs, epilogue, stream);
    case Tile::k64:
      return run_many<64, 2, 3>(p, x.most_jobs, epilogue, stream);
    case Tile::kPrefill:
      return run_many<128, 4, 3>(p, x.most_jobs, epilogue, stream);
    default:
      return run_many<128, 2, 2>(p, x.most_jobs, epilogue, stream);
  }
}

}  // namespace

Status gemm(const Weights& w, const Tokens& x, Tile tile, const SwiGluMx& out, cudaStream_t stream) {
  return run_tile<2>(w, x, tile, out, stream);
}
Status gemm(const Weights& w, const Tokens& x, Tile tile, const Store& out, cudaStream_t stream) {
  return run_tile<1>(w, x, tile, out, stream);
}
Status gemm(const Weights& w, const Tokens& x, Tile tile, const AtomicCombine& out, cudaStream_t stream) {
  return run_tile<1>(w, x, tile, out, stream);
}

}  // namespace moesaic::cuda::sm120a
