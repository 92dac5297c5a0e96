// Products y = W x of the dense layers, by the kernel that select() (select.h) names.
#pragma once

#include "backend/cuda/kernels/common/gemm.h"
#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/kernels/common/word_sender.h"
#include "backend/cuda/layout/slab_layout.h"

namespace moesaic::cuda {

struct Target;  // select.h

// linear() needs these besides operands.
struct LinearSetup {
  const Target& target;
  slabs::SlabLayout layout;  // the device's: kernels of many rows take its sms
  void* tiles = nullptr;     // linear_tile_bytes() of memory
  cudaStream_t stream = nullptr;
};
// Bytes in which a product of so many rows, with at most so many columns, arranges its activations.
size_t linear_tile_bytes(int rows, int widest);

template <class Epilogue>  // Store or Qkv
Status linear(const Matrix& w, const Activations& x, const Epilogue& out, const LinearSetup& setup);
// The tile in which linear() would arrange these activations in setup.tiles: who writes them there so
// (ActivationRow) says it in Activations::arranged, and spares the arranging. 0: it takes plain rows.
int arranged_tile(const Matrix& w, int tokens, const LinearSetup& setup);
// linear_sent() sends a rank's product to the other ranks, too, as its kernel makes it. can_send(): whether a
// kernel does that for this product, which is so for few tokens.
bool can_send(const Matrix& w, int tokens, const LinearSetup& setup);
Status linear_sent(const Matrix& w, const Activations& x, const Store& out, const WordSender& sender,
                   const LinearSetup& setup);
// The product of norm(x); x.deferred is added to x before.
template <class Epilogue>
Status linear(const Matrix& w, const Norm& x, const Epilogue& out, const LinearSetup& setup);

}  // namespace moesaic::cuda
