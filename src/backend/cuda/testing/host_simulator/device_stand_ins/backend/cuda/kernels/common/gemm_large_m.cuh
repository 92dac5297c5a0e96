// gemm_large_m.cuh on the host: nothing. Tests keep to tiles of 32 tokens.
#pragma once

#include <cstdlib>

#include "backend/cuda/kernels/common/gemm_tile.cuh"

namespace moesaic::cuda {

inline constexpr int kLargeMWarps = 1, kLargeMWeightTiles = 1, kLargeMStages = 0, kLargeMStep = 0;

template <class Source, int kTokens, class Epilogue>
void gemm_large_m_kernel(const GemmParams, const Epilogue) {
  std::abort();
}

}  // namespace moesaic::cuda
