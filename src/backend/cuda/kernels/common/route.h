// The small kernels between the matrix products: residual and norm, router, top-k and the expert work list.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common/operands.h"
#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// A part of the residual that is not added yet: x[r] += sum over k of weights[r, k] *
// expert_out[permuted_rows[r, k]], in the order of k. The experts' kernels for large batches defer the add:
// pass it to the next norm, which does it. It must be used exactly once.
struct DeferredResidual {
  const float* expert_out = nullptr;       // [permuted rows, hidden]; null: nothing is deferred
  const float* weights = nullptr;          // [rows, top_k]
  const int32_t* permuted_rows = nullptr;  // [rows, top_k]
  int top_k = 0;
};

// x += deferred, if there is any; out = x / rms(x) * weight * factor.
struct Norm {
  float* x = nullptr;                // [rows, hidden]
  const int32_t* row_map = nullptr;  // output row r reads row row_map[r]; null: row r
  int rows = 0, hidden = 0;
  float eps = 0, factor = 1;
  const float* weight = nullptr;
  void* out = nullptr;  // [rows, hidden] BF16, or F16
  bool bf16 = true;
  int out_tile = 0;  // norm() alone takes it: the tile in which out stands (ActivationRow in operands.h)
  float* out_f32 = nullptr;  // the same without the factor; may be null
  DeferredResidual deferred = {};
  int* fault = nullptr;  // `code` is left here if a row is not finite and nothing stands there yet
  int code = 0;
};
Status norm(const Norm& p, cudaStream_t stream);

// logits[row, e] = router[e] . x[row] + bias[e], in F32: the choice of experts is discrete.
struct Router {
  const float* x = nullptr;  // [rows, hidden]
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* logits = nullptr;  // [rows, experts]
  int rows = 0, hidden = 0, experts = 0;
};
Status router(const Router& p, cudaStream_t stream);

// Top-k, softmax over the chosen k, (row, choice) pairs permuted into groups by expert (in the order of
// rows), and the work tiles of at most `tile` permuted rows each; experts without rows have no work tile.
struct Route {
  const float* logits = nullptr;
  int rows = 0, experts = 0, top_k = 0, tile = 8;
  bool even = false;         // an expert's work tiles are about equally long, for kernels/sm90/gemm_wgmma.h
  int32_t* ids = nullptr;    // [rows, top_k], may be left as it is
  float* weights = nullptr;  // [rows, top_k]
  int32_t* permuted_rows = nullptr;  // [rows, top_k]
  int32_t* source_rows = nullptr;    // [rows * top_k]: the row that each permuted row is of
  WorkTile* work_tiles = nullptr;
  int* work_tile_count = nullptr;
};
Status route(const Route& p, cudaStream_t stream);
// Its two parts: ids and weights alone; and the work list of ids that are there. A pair whose id is -1 has no
// place in the list, and its permuted_rows is left as it is.
Status top_k(const Route& p, cudaStream_t stream);
Status list_work(const Route& p, cudaStream_t stream);
// norm and router in one kernel, for decoding; it adds in another order. norm.out_f32,
// norm.deferred and router.x are not used.
inline constexpr int kMostScoredHidden = 3072;
// Beyond so many rows, or logits in all, norm() and router() are quicker.
inline constexpr int kMostScoredRows = 512, kMostScoredLogits = 256 * 128;
Status score(const Norm& n, const Router& r, cudaStream_t stream);
// norm, router and route in one kernel, the same bits; of up to 8 rows, 128 experts and top 4. arrived: an
// int that is zero between kernels.
inline constexpr int kMostChosenHidden = 3072;
Status choose(const Norm& n, const Router& r, const Route& t, int* arrived, cudaStream_t stream);
// The most work tiles that route can make.
int max_work_tiles(int rows, int experts, int top_k, int tile);

// rotation[r, i] = (cos, sin)(positions[r] * inverse_frequency[i]) * factor
Status rotations(const int32_t* positions, int rows, const double* inverse_frequency, int half, double factor,
                 float2* rotation, cudaStream_t stream);

}  // namespace moesaic::cuda
