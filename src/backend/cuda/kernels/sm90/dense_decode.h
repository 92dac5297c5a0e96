// y = W x for the dense matrices and up to 32 tokens, on Hopper: see dense_decode.cu.
//
// A token's sums have one order for up to 8 tokens, one for 9 to 16 and one for more, none of them gemm()'s.
#pragma once

#include "backend/cuda/kernels/common/gemm.h"
#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/kernels/common/word_sender.h"

namespace moesaic::cuda::sm90 {

// True if the activations of up to 32 tokens fit shared memory. The kernel takes dense matrices but MXFP4.
bool dense_decode_fits(int64_t cols, int tokens);

// A rank's store, which goes to the other ranks as well. It takes up to 8 tokens.
struct SentStore : Store {
  WordSender sender;
};
// x: activations, dense.
template <class Epilogue>  // Store, Qkv or SentStore
Status dense_decode(const Matrix& w, const Activations& x, const Epilogue& out, cudaStream_t stream);
// The same for norm(x) of up to 8 rows, computed by every CTA for itself; norm.out is not written.
// Nothing may be deferred.
inline constexpr int kMostNormedCols = 4096;
template <class Epilogue>  // Store or Qkv
Status dense_decode(const Matrix& w, const Norm& norm, const Epilogue& out, cudaStream_t stream);

}  // namespace moesaic::cuda::sm90
