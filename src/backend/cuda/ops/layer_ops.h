// The ops of a layer: its weights, its cache and the rows are arguments. The model's layers and the draft
// head's run through the same.
#pragma once

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/layout/model.h"
#include "backend/cuda/ops/linear.h"

namespace moesaic::cuda {

// Rows of the residual stream that are to be normed, and where they go.
struct NormRows {
  float* x = nullptr;
  int rows = 0, hidden = 0;
  double eps = 0;
  void* out = nullptr;
  int* fault = nullptr;
  int code = 0;
  DeferredResidual deferred = {};
};
// For a matrix of this kind. factor: of the activations, where they are F16.
Norm norm_of(const NormRows& r, const DeviceBuffer& weight, float factor, Kind next);

// Where Q of the rows goes; K and V go to the layer's cache.
struct QkvRows {
  const float2* rotation = nullptr;  // [rows, head_dim / 2]
  const int32_t* slots = nullptr;    // [rows] page * kPageTokens + token in the page
  __nv_bfloat16* q = nullptr;
};
Status qkv(const Layer& layer, const Norm& x, const QkvRows& rows, const LinearSetup& setup);
Status qkv(const Layer& layer, const Activations& x, const QkvRows& rows, const LinearSetup& setup);

struct AttendedRows {
  const __nv_bfloat16* q = nullptr;
  const int32_t* pages = nullptr;
  bool sliding = false;            // the tiles' page table is that of the sliding layers
  void* out = nullptr;             // as the output projection takes it
  const int32_t* tiles = nullptr;  // RowTile [tile_count]
  int tile_count = 0;
  int kv_splits = 1;
  bool decode = true;  // as attend() of ops/attention.h has it
};
Status attend(const Layer& layer, const AttendedRows& rows, const LinearSetup& setup);
// x += the output projection of the rows that were attended to.
Status project(const Layer& layer, const void* attended, int rows, float* x, const LinearSetup& setup);
// x += the dense MLP of norm(x). middle: [rows, intermediate] of 16 bits. layer.up_bias has swiglu_offset - 1
// in it.
Status dense_mlp(const Layer& layer, const Norm& x, void* middle, const LinearSetup& setup);

}  // namespace moesaic::cuda
