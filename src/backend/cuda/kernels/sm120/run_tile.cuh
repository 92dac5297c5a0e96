// The launch of a tile's kernel. A file that includes this compiles those that it names.
#pragma once

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm120/gemm_large_m.cuh"
#include "backend/cuda/kernels/sm120/gemm_small_m.cuh"
#include "backend/cuda/kernels/sm120/load_tile.h"
#include "backend/cuda/kernels/sm120/tile_code.h"

namespace moesaic::cuda::sm120 {

inline Product product_of(const QuadWeights& w, const Tokens& x) {
  const int blocks = x.cols / kBlock;
  return {.weights = w.data,
          .weight_tile_stride = weight_tile_bytes(w.element, blocks),
          .weight_tiles = w.weight_tiles,
          .blocks = blocks,
          .tokens = x};
}

template <class Epilogue>
inline constexpr const char* kEpilogueName = nullptr;
template <>
inline constexpr const char* kEpilogueName<SwiGluMx> = "SwiGluMx";
template <>
inline constexpr const char* kEpilogueName<Store> = "Store";
template <>
inline constexpr const char* kEpilogueName<Qkv> = "Qkv";

// code: what load_tile() gave for a kernel of these parameters.
template <typename... Params>
Status run(void (*)(Params...), const Result<const void*>& code, const Product& p, int weight_tiles,
           int warps, size_t shared, cudaStream_t stream, const auto& epilogue) {
  if (!code.ok()) return code.status();
  if (p.weight_tiles == 0) return {};
  const auto kernel = reinterpret_cast<void (*)(Params...)>(const_cast<void*>(code.value()));
  const auto blocks = static_cast<unsigned>((p.weight_tiles + weight_tiles - 1) / weight_tiles);
  return launch(kernel, dim3(blocks, p.tokens.most_work_tiles), dim3(warps * 32), shared, stream, p,
                epilogue);
}

// kWeightTiles: of a small-M CTA.
template <Element kA, int kWeightTiles, Tile kTile, class Epilogue>
Status run_shape(const Product& p, const Epilogue& epilogue, cudaStream_t stream) {
  constexpr TileShape kShape = shape_of(kA, kTile);
  const auto load = [](auto kernel, size_t shared) {
    return load_tile(reinterpret_cast<const void*>(kernel),
                     tile_name(kA, kTile, kWeightTiles, kEpilogueName<Epilogue>), shared);
  };
  static PerDevice<const void*> code;
  if constexpr (kShape.groups > 0) {
    constexpr size_t kShared = kSmallMShared<kA, kShape.groups, kWeightTiles>;
    const auto kernel = block_scaled_small_m_kernel<kA, kShape.groups, kWeightTiles, Epilogue>;
    return run(kernel, code.get([&] { return load(kernel, kShared); }), p, kWeightTiles, kSmallMWarps,
               kShared, stream, epilogue);
  } else {
    constexpr size_t kShared = LargeMTile<kA, kShape.tokens, kShape.weight_tiles, kShape.stages>::kShared;
    const auto kernel =
        block_scaled_large_m_kernel<kA, kShape.tokens, kShape.weight_tiles, kShape.stages, Epilogue>;
    return run(kernel, code.get([&] { return load(kernel, kShared); }), p, kShape.weight_tiles, kLargeMWarps,
               kShared, stream, epilogue);
  }
}

template <Element kA, int kWeightTiles, class Epilogue>
Status run_tile(const QuadWeights& w, const Tokens& x, Tile tile, const Epilogue& epilogue,
                cudaStream_t stream) {
  const Product p = product_of(w, x);
  switch (tile) {
    case Tile::k8:
      return run_shape<kA, kWeightTiles, Tile::k8>(p, epilogue, stream);
    case Tile::k16:
      return run_shape<kA, kWeightTiles, Tile::k16>(p, epilogue, stream);
    case Tile::k32:
      return run_shape<kA, kWeightTiles, Tile::k32>(p, epilogue, stream);
    case Tile::k64:
      return run_shape<kA, kWeightTiles, Tile::k64>(p, epilogue, stream);
    case Tile::kPrefill:
      return run_shape<kA, kWeightTiles, Tile::kPrefill>(p, epilogue, stream);
    default:
      return run_shape<kA, kWeightTiles, Tile::k128>(p, epilogue, stream);
  }
}

}  // namespace moesaic::cuda::sm120
