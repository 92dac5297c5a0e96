// Products y = W x of the dense layers, by the kernel that select() (select.h) names.
#pragma once

#include "backend/cuda/kernels/common/gemm.h"
#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/layout/slab_layout.h"

namespace moesaic::cuda {

struct Target;  // select.h

// What linear() needs besides operands.
struct LinearSetup {
  const Target& target;
  sm90::SlabLayout layout;  // of the device: WGMMA kernels take its sms
  void* tiles = nullptr;    // room for activations as the kernel wants them
  cudaStream_t stream = nullptr;
};
Status linear(const Matrix& w, const Activations& x, const Store& out, const LinearSetup& setup);
Status linear(const Matrix& w, const Activations& x, const Qkv& out, const LinearSetup& setup);
// Of norm(x), and what x.deferred adds to x before.
Status linear(const Matrix& w, const Norm& x, const Store& out, const LinearSetup& setup);
Status linear(const Matrix& w, const Norm& x, const Qkv& out, const LinearSetup& setup);

}  // namespace moesaic::cuda
