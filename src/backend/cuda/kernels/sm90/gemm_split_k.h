// The experts' products for about 9 to 128 tokens of a step, on Hopper: see gemm_split_k.cu.
//
// Every sum runs along the contraction in one order, that of moe_decode.h: a token's
// result does not depend on the batch, the work tile or the grid.
#pragma once

#include "backend/cuda/kernels/common/gemm.h"
#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/layout/slab_layout.h"

namespace moesaic::cuda::sm90 {

inline constexpr int kSplitKTokens = 16;  // most tokens of a work tile

// For few rows (split_k_routes()) the first product itself makes the list of work tiles, from the router's
// logits, and writes all that Route names. made: an int that is 0 between products; null: the list is there
// already.
struct SplitKRoute {
  Route route;
  int* made = nullptr;
  int* fault = nullptr;  // becomes kGaveUp (kernels/common/gave_up.h) if the second product waited too long
                         // for the list
};
bool split_k_routes(const Route& route);

// layout: of the second product's slabs; at most its sms CTAs run.
// The first product and SwiGLU (alpha 1.702, limit 7). x: F16, work tiles of at most kSplitKTokens permuted
// rows; h: [permuted rows, 2880] F16, times kHScale, from the column on that the first slab pair makes.
Status split_k_up(const uint8_t* fc1, const SlabLayout& layout, const Activations& x,
                  const SplitKRoute& route, __half* h, cudaStream_t stream);
// The second, whose biases stand in the slabs: out.bias is not used. route: as the first one had it.
Status split_k_down(const uint8_t* fc2, const SlabLayout& layout, const Activations& h,
                    const SplitKRoute& route, const Store& out, cudaStream_t stream);

}  // namespace moesaic::cuda::sm90
