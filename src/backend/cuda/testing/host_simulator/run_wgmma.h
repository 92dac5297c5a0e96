// Helpers for the tests of gemm_wgmma.cuh.
#pragma once

#include <gtest/gtest.h>

#include "backend/cuda/kernels/sm90/gemm_wgmma.cuh"

namespace moesaic::cuda::sm90 {

alignas(1024) inline thread_local uint8_t wgmma_shared[kSharedLimit];  // the kernel's

// Where gemm_wgmma.h's ActivationTiles has a tile's element, of `width` tokens.
inline int64_t place_in_tile(int width, int token, int column) {
  const int in_block = column % 32, chunk = column / 32 % 2 * 4 + in_block % 8 / 2;
  return (int64_t{column / 64} * width + token) * 64 + chunk_place(chunk, token) * 8 + in_block / 8 * 2 +
         column % 2;
}

template <class Weights, int kTile, class Epilogue>
void run_wgmma(const WgmmaParams& p, const Epilogue& out, unsigned blocks) {
  const auto kernel = [&] { gemm_wgmma_kernel<Weights, kTile, Epilogue>(p, out); };
  if (p.split == 1) {
    ASSERT_TRUE(on_host::run_in_turn(blocks, kWgmmaThreads, wgmma_shared, kernel));
  } else {
    ASSERT_TRUE(on_host::run_at_once(blocks, kWgmmaThreads, wgmma_shared, kernel, p.split));
  }
}
// blocks: of the grid, fewer than the device has, so that each has many tiles.
template <class Weights, class Epilogue>
void run_wgmma(const WgmmaParams& p, const Epilogue& out, unsigned blocks) {
  if (p.x.tile == 64) run_wgmma<Weights, 64>(p, out, blocks);
  if constexpr (Weights::kWgmma) {
    if (p.x.tile == 32) run_wgmma<Weights, 32>(p, out, blocks);
    if (p.x.tile == 128) run_wgmma<Weights, 128>(p, out, blocks);
  }
  if constexpr (!Weights::kGrouped || Weights::kFp8) {
    if (p.x.tile == 192) run_wgmma<Weights, 192>(p, out, blocks);
  }
}

}  // namespace moesaic::cuda::sm90
