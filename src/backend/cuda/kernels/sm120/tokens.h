// Prepares activations for the products of gemm.h: rows become the tokens of quad_layout.h, grouped by
// expert.
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/kernels/sm120/operands.h"

namespace moesaic::cuda::sm120 {

// Bytes of the buffer for so many tokens, of which `ends` work tiles have a count that is no multiple of 16.
inline size_t token_buffer_bytes(size_t tokens, size_t ends, int cols, int parts = 1) {
  return (tokens + 15 * ends + kGroup - 1) / kGroup * parts * group_bytes(cols / kBlock);
}

// Gathers and quantises in one pass: token r is row rows[r] of x, or row r; x: [.., cols].
Status expand(const __nv_bfloat16* x, const int32_t* rows, const Tokens& out, cudaStream_t stream);

// norm() and expand() of its result in BF16, in one pass, to MXFP8: token r is output row r. norm.out is not
// written.
Status norm_expand(const Norm& norm, const Tokens& out, cudaStream_t stream);

}  // namespace moesaic::cuda::sm120
