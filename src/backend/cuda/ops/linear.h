// Products y = W x. linear() is the op of the dense layers: it runs the kernel that select() (select.h)
// names. gemm() is the kernel that every device has, for the experts too: weights are the rows of the MMA,
// tokens its columns. It is two, small M (gemm_small_m.cuh: tiles of 8 to 32 tokens) and large M
// (gemm_large_m.cuh: 64 or 128), which add in the same order (gemm_tile.cuh): a result depends on the unit's
// weights and its own token only, not on the tile, the batch or the grid.
#pragma once

#include "backend/cuda/ops/operands.h"
#include "backend/cuda/weights/matrix.h"
#include "backend/cuda/weights/slab_layout.h"

namespace moesaic::cuda {

struct Norm;    // route.h
struct Target;  // select.h

// The other operand. Slot s reads row rows[s] of x, or row s where rows is null.
struct Activations {
  const void* x = nullptr;  // [.., cols] BF16 or F16, as takes_bf16() says
  const int32_t* rows = nullptr;
  float factor = 1;  // what the result is multiplied by
  int tokens = 0;    // dense: slots. Grouped: the most jobs there can be
  // Grouped by expert: jobs on the device, each of at most `tile` slots. Null: one matrix, all tokens.
  const Job* jobs = nullptr;
  const int* job_count = nullptr;
  int tile = 8;  // tokens of a tile: 8, 16, 32, 64 or 128
};

// The error of a combination that no kernel of `op` is compiled for.
Status no_kernel(const char* op, const Matrix& w, int tokens);

// Every kind but those in quads.
Status gemm(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream);
Status gemm(const Matrix& w, const Activations& x, const SwiGlu& out, cudaStream_t stream);
Status gemm(const Matrix& w, const Activations& x, const Qkv& out, cudaStream_t stream);

// What linear() needs besides operands.
struct LinearSetup {
  const Target& target;
  sm90a::SlabLayout layout;  // of the device: WGMMA kernels take its sms
  void* tiles = nullptr;     // room for activations as the kernel wants them
  cudaStream_t stream = nullptr;
};
Status linear(const Matrix& w, const Activations& x, const Store& out, const LinearSetup& setup);
// Of norm(x), and what x.deferred adds to x before.
Status linear(const Matrix& w, const Norm& x, const Store& out, const LinearSetup& setup);
Status linear(const Matrix& w, const Norm& x, const Qkv& out, const LinearSetup& setup);

}  // namespace moesaic::cuda
