// The launch of a tile's kernel: which of them is compiled for what. A file that includes this compiles those
// it names.
#pragma once

#include "backend/cuda/sm120a/gemm.h"
#include "backend/cuda/sm120a/gemm_few.cuh"
#include "backend/cuda/sm120a/gemm_many.cuh"

namespace moesaic::cuda::sm120a {

inline Product product_of(const Weights& w, const Tokens& x, Tile tile) {
  const int blocks = x.cols / kBlock;
  return {.weights = w.data,
          .unit_stride = unit_bytes(w.element, blocks),
          .units = w.units,
          .blocks = blocks,
          .tokens = x,
          .whole = tile == Tile::kCapacity128};
}

template <typename... Params>
Status run(void (*kernel)(Params...), const Product& p, int units, int warps, size_t shared,
           cudaStream_t stream, const auto& epilogue) {
  const auto blocks = static_cast<unsigned>((p.units + units - 1) / units);
  return launch(kernel, dim3(blocks, p.tokens.most_jobs), dim3(warps * 32), shared, stream, p, epilogue);
}

template <Element kElement, int kGroups, int kUnits, class Epilogue>
Status run_few(const Product& p, const Epilogue& epilogue, cudaStream_t stream) {
  constexpr size_t kShared = kFewShared<kElement, kGroups, kUnits>;
  static_assert(kShared <= 48 * 1024);
  return run(few_kernel<kElement, kGroups, kUnits, Epilogue>, p, kUnits, kFewWarps, kShared, stream,
             epilogue);
}

template <Element kElement, int kTokens, int kUnits, int kStages, class Epilogue>
Status run_many(const Product& p, const Epilogue& epilogue, cudaStream_t stream) {
  constexpr size_t kShared = ManyTile<kElement, kTokens, kUnits, kStages>::kShared;
  const auto kernel = many_kernel<kElement, kTokens, kUnits, kStages, Epilogue>;
  // Once for each kernel; more than 48 KB are to be asked for.
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  if (allowed != cudaSuccess) return check(allowed, "products");
  return run(kernel, p, kUnits, kManyWarps, kShared, stream, epilogue);
}

// kUnits: of a block for few tokens. SwiGLU's blocks of 32 values need two.
template <Element kElement, int kUnits, class Epilogue>
Status run_tile(const Weights& w, const Tokens& x, Tile tile, const Epilogue& epilogue, cudaStream_t stream) {
  const Product p = product_of(w, x, tile);
  // As many stages as leave room for a second thread block, where that is possible.
  constexpr bool kWide = kElement == Element::kE4M3;
  switch (tile) {
    case Tile::k8:
      return run_few<kElement, 1, kUnits>(p, epilogue, stream);
    case Tile::k16:
      return run_few<kElement, 2, kUnits>(p, epilogue, stream);
    case Tile::k32:
      return run_few<kElement, 4, kUnits>(p, epilogue, stream);
    case Tile::k64:
      return run_many < kElement, 64, 2, kWide ? 2 : 3 > (p, epilogue, stream);
    case Tile::kPrefill:
      return run_many < kElement, 128, 4, kWide ? 2 : 3 > (p, epilogue, stream);
    default:
      return run_many < kElement, 128, 2, kWide ? 3 : 2 > (p, epilogue, stream);
  }
}

}  // namespace moesaic::cuda::sm120a
