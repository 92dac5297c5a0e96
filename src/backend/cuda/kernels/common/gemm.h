// Products y = W x by the kernels that every device runs, for dense layers and experts: gemm_small_m.cuh for
// tiles of 8 to 32 tokens, gemm_large_m.cuh for 64 or 128. Both add in the same order (gemm_tile.cuh), so a
// token's result does not depend on the tile, the batch or the grid. Weights are M of the MMA, tokens are N.
#pragma once

#include "backend/cuda/kernels/common/operands.h"
#include "backend/cuda/layout/matrix.h"

namespace moesaic::cuda {

// The other operand. Output row r reads row rows[r] of x, or row r where rows is null.
struct Activations {
  const void* x = nullptr;  // [.., cols] BF16 or F16, as takes_bf16() says
  bool fp8 = false;         // as to_fp8() (gemm_fp8.h) leaves them, for gemm_fp8()
  const int32_t* rows = nullptr;
  float factor = 1;  // the result is multiplied by it
  int tokens = 0;    // dense: rows. Grouped: the most work tiles there can be
  int arranged = 0;  // dense: the tile in which x stands (ActivationRow); 0: plain rows. linear() alone
  // Grouped by expert: work tiles, in device memory, each of at most `tile` permuted rows. Null: one matrix,
  // all tokens.
  const WorkTile* work_tiles = nullptr;
  const int* work_tile_count = nullptr;
  int tile = 8;  // tokens of a tile: 8, 16, 32, 64 or 128
};

// Bytes of shared memory of a CTA: sums of 8 slices, or three steps of activations.
constexpr int gemm_shared_bytes(int tile) { return tile <= 32 ? 8 * tile * 33 * 4 : 3 * tile * 64 * 2; }

// Every kind but those in quads.
Status gemm(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream);
Status gemm(const Matrix& w, const Activations& x, const SwiGlu& out, cudaStream_t stream);
Status gemm(const Matrix& w, const Activations& x, const Qkv& out, cudaStream_t stream);

}  // namespace moesaic::cuda
