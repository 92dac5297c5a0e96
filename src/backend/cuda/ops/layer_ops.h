// The ops of a layer: its weights, its cache and the rows are arguments. The model's layers and the draft
// head's run through the same. Q, K and V are linear() of qkv_of(), attention is attend() of attention_of().
#pragma once

#include "backend/cuda/layout/model.h"
#include "backend/cuda/ops/attention.h"
#include "backend/cuda/ops/linear.h"
#include "backend/cuda/ops/rank_exchange.h"

namespace moesaic::cuda {

// n with this weight, for a matrix of this kind. factor: of the activations, where they are F16.
Norm norm_of(Norm n, const DeviceBuffer& weight, float factor, Kind next);
// Q goes to q, K and V go to the layer's cache.
Qkv qkv_of(const Layer& layer, const float2* rotation, const int32_t* slots, __nv_bfloat16* q);
// The rows that were attended to, [rows, q_size] of 16 bits: plain, or in the tiles that the output
// projection arranges them in (ActivationRow).
struct Attended {
  void* data = nullptr;
  int rows = 0;
  int tile = 0;
};
// The place in which attention leaves its rows: setup.tiles if the projection takes tiles, else `plain`.
Attended attended_in(const Layer& layer, int rows, void* plain, const LinearSetup& setup);
// The row tiles are left to the caller.
Attention attention_of(const Layer& layer, const __nv_bfloat16* q, const int32_t* pages, const Attended& out);
// x += the output projection of the rows that were attended to.
Status project(const Layer& layer, const Attended& attended, float* x, const LinearSetup& setup);
// The same by ranks, each with its rows of the weights. x: [rows, hidden], every rank's.
Status project(const Layer& layer, const Attended& attended, const OfRanks<float>& x,
               const LinearSetup& setup, RankExchange& ranks);
// n.x += the dense MLP of norm(n). middle: [rows, intermediate] of 16 bits. layer.up_bias has swiglu_offset -
// 1 in it.
Status dense_mlp(const Layer& layer, const Norm& n, void* middle, const LinearSetup& setup);

}  // namespace moesaic::cuda
