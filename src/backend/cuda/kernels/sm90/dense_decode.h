// y = W x for the dense matrices and up to 32 tokens, on Hopper: see dense_decode.cu.
//
// A token's sums have one order for up to 8 tokens and one for more, neither of them gemm()'s.
#pragma once

#include "backend/cuda/ops/linear.h"
#include "backend/cuda/ops/route.h"

namespace moesaic::cuda::sm90a {

// Whether the kernel takes the matrix: dense, not MXFP4, and its activations fit shared memory.
bool dense_decode_fits(const Matrix& w, int tokens);

// x: activations, dense.
Status dense_decode(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream);
Status dense_decode(const Matrix& w, const Activations& x, const Qkv& out, cudaStream_t stream);
// The same for norm(x) of up to 8 rows, computed by every thread block for itself; norm.out is not written.
// The experts' share must have been added.
bool dense_decode_norms(const Norm& norm);
Status dense_decode(const Matrix& w, const Norm& norm, const Store& out, cudaStream_t stream);
Status dense_decode(const Matrix& w, const Norm& norm, const Qkv& out, cudaStream_t stream);

}  // namespace moesaic::cuda::sm90a
