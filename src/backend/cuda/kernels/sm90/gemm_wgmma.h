// y = W x for many tokens (large M) by wgmma, on Hopper: see gemm_wgmma.cuh.
//
// A sum runs along the contraction in one order whatever the tile; the order is another than gemm.h's. Where
// a dense product has too few tiles for all multiprocessors, the CTAs of a cluster sum a part of the
// contraction each (ActivationTiles::split), and the parts are added in their order.
#pragma once

#include "backend/cuda/kernels/common/gemm.h"
#include "backend/cuda/kernels/common/gemm_fp8.h"
#include "backend/cuda/layout/slab_layout.h"
#include "core/rank_share.h"

namespace moesaic::cuda::sm90 {

inline constexpr int kWgmmaTokens = 192;  // most tokens of a work tile; of experts in F16 128
inline constexpr int kMmaTokens = 64;     // most tokens of a work tile of mma_experts()
inline constexpr int kWgmmaStep = 64;     // columns of a swizzled row: 128 bytes, 64 in FP8
inline constexpr int kMostSplit = 8;      // CTAs that share a tile, at most

// Activations, or room for them, as the tensor cores read them. A work tile's tile begins at token
// work_tile.start of the buffer and is [cols / 64][tile_width(count) tokens][128 bytes]: what a stage needs
// is one contiguous piece. operands.h has the order of the chunks. What lies beyond count is never used.
//
// FP8 (experts): E4M3, with 64 bytes for 128. Of 32 columns the first chunk holds 8 c + 0 to 3 of c = 0..3,
// the second 8 c + 4 to 7; the swizzle is that of 64 bytes (fp8_place()). A value is the F16 one times
// kFp8Scale, so that none below 2^15, and no h, is above E4M3's largest.
struct ActivationTiles {
  void* data = nullptr;
  int cols = 0;  // a multiple of 64
  const WorkTile* work_tiles = nullptr;
  const int* work_tile_count = nullptr;
  int most_work_tiles = 0;
  // Without work tiles: `tokens` tokens, `tile` a work tile.
  int tokens = 0;
  int tile = 0;       // tokens of a work tile, at most
  bool fp8 = false;   // for experts alone
  int split = 1;      // CTAs of a cluster that take a part of the contraction each
  SlabLayout layout;  // the slabs'; at most its sms CTAs run, also for dense matrices
};
// Chooses the tiles of a dense product's tokens, and how many CTAs share a tile.
ActivationTiles dense_tiles(const Matrix& w, const SlabLayout& layout, void* data, int tokens);
// Tokens that the buffer must hold; ends: work tiles whose count is no tile_width, one an expert at most.
inline size_t tile_tokens(size_t tokens, size_t ends) { return tokens + 15 * ends; }

// Fills tiles: token r is row rows[r] of x, or row r; [.., cols] of 16 bits.
Status arrange(const void* x, const int32_t* rows, const ActivationTiles& tiles, cudaStream_t stream);

// The experts' first product and SwiGLU (alpha 1.702, limit 7), from slabs; out: the tiles of the second, in
// FP8 if x is, times kHScale. factor: as for F16 activations. Other ranks get the columns, too; each rank
// then calls await_stores() (gather.h).
struct WgmmaSwiGlu {
  uint8_t* out = nullptr;
  uint8_t* peer_out[kMostRanks - 1] = {};
  int peers = 0;
  const float* gate_bias = nullptr;  // [experts, columns]
  const float* up_bias = nullptr;
  int first = 0, columns = slabs::kHidden;  // the part of h that these weights make: multiples of 32
};
Status wgmma_experts(const uint8_t* fc1, const ActivationTiles& x, float factor, const WgmmaSwiGlu& out,
                     cudaStream_t stream);
// The second: out[permuted_row, row] = value + bias, of out.rows rows.
Status wgmma_experts(const uint8_t* fc2, const ActivationTiles& x, float factor, const Store& out,
                     cudaStream_t stream);
// The same two products by mma.sync, for devices without wgmma. x is in F16, in tiles of up to kMmaTokens.
Status mma_experts(const uint8_t* fc1, const ActivationTiles& x, float factor, const WgmmaSwiGlu& out,
                   cudaStream_t stream);
Status mma_experts(const uint8_t* fc2, const ActivationTiles& x, float factor, const Store& out,
                   cudaStream_t stream);

// Dense matrices in BF16, F16, Q8_0 or MXFP8.
Status wgmma_dense(const Matrix& w, const ActivationTiles& x, float factor, const Store& out,
                   cudaStream_t stream);
Status wgmma_dense(const Matrix& w, const ActivationTiles& x, float factor, const Qkv& out,
                   cudaStream_t stream);

}  // namespace moesaic::cuda::sm90
