// The small kernels of a draft head (core/eagle3.h), between its products. Values that are not finite go on
// as such to the logits, of which then no token is chosen, but not into the head's K and V.
#pragma once

#include "backend/cuda/ops/route.h"
#include "backend/cuda/weights/repack.h"

namespace moesaic::cuda {

// A tap of the target's residual stream: out[r] = x[r] + deferred[r], which stays deferred.
struct Tap {
  const float* x = nullptr;  // [rows, hidden]
  DeferredResidual deferred = {};
  int rows = 0, hidden = 0;
  float* out = nullptr;
  int64_t stride = 0;  // floats from one row of `out` to the next
};
Status tap(const Tap& p, cudaStream_t stream);

// out[r] = the taps of row sources[r] as fc takes them, times factor: all of them through input_norm, then
// each through its fc_norm, where there are such norms.
struct FuseTaps {
  const float* taps = nullptr;       // [rows of the step, taps, hidden]
  const int32_t* sources = nullptr;  // [rows]
  int rows = 0, count = 0, hidden = 0;
  float eps = 0, factor = 1;
  const float* input_norm = nullptr;  // [count, hidden] or null
  const float* fc_norms = nullptr;    // [count, hidden] or null
  void* out = nullptr;                // [rows, count, hidden] BF16, or F16
  bool bf16 = true;
};
Status fuse_taps(const FuseTaps& p, cudaStream_t stream);

// out[r] = [norm(embedding of tokens[r]); norm(features[r])] times factor. residual[places[r]] = features[r],
// or norm(features[r]), where places[r] is not negative.
struct JoinInputs {
  Raw embed = {};
  const int32_t* tokens = nullptr;  // [rows]
  const float* features = nullptr;  // [rows, hidden]
  const int32_t* places = nullptr;  // [rows]
  int rows = 0, hidden = 0;
  float eps = 0, factor = 1;
  const float* embed_norm = nullptr;
  const float* hidden_norm = nullptr;
  bool normed_residual = false;
  void* out = nullptr;  // [rows, 2 hidden] BF16, or F16
  bool bf16 = true;
  float* residual = nullptr;
};
Status join_inputs(const JoinInputs& p, cudaStream_t stream);

// to[places[r]] = from[r] where places[r] is not negative; rows of 16-bit values.
struct PlaceRows {
  const void* from = nullptr;  // [rows, width]
  const int32_t* places = nullptr;
  int rows = 0, width = 0;  // width: a multiple of 8
  void* to = nullptr;
};
Status place_rows(const PlaceRows& p, cudaStream_t stream);

// What the next round begins with: its row r goes on from row kept[r] of this one.
// tokens[r] = ids[chosen[kept[r]]], or chosen[kept[r]]; 0 for a token that could not be chosen.
struct NextRound {
  const int32_t* kept = nullptr;    // [rows]
  const int32_t* chosen = nullptr;  // of this round's rows; -1: none
  const int32_t* ids = nullptr;     // null: they are the target's already
  const float* from = nullptr;      // of this round's rows, [.., hidden]
  int rows = 0, hidden = 0;
  int32_t* tokens = nullptr;  // [rows]
  float* features = nullptr;  // [rows, hidden]
};
Status next_round(const NextRound& p, cudaStream_t stream);

}  // namespace moesaic::cuda
