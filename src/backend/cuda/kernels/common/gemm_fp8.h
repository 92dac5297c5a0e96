// Experts in MXFP4 times activations in E4M3, by mma.sync for tiles of 64 or 128 tokens (gemm_large_m.cuh).
// For devices that have kFp8Mma (runtime/features.h).
#pragma once

#include "backend/cuda/kernels/common/gemm.h"

namespace moesaic::cuda {

// Factors of F16 rows, so that none below 2^15 is above E4M3's largest, 448; and of SwiGLU's results at a
// limit of 7, which are at most 56.
inline constexpr float kFp8Scale = 0x1p-7f, kFp8HiddenScale = 8;
inline constexpr int kFp8Columns = 64;  // a product's are a multiple of them

// x, `rows` rows of `cols` F16 columns, becomes E4M3 of the values times `scale`, at `codes`: rows * cols
// bytes. Of 64 columns 16 bytes c = 0..3 are the columns 8 c + {2, 0, 3, 1}, 8 c + 4 + {2, 0, 3, 1} and 32
// more than each of them, as the MMAs take them (Mxfp4Fp8Source).
Status to_fp8(Activations& x, int rows, int cols, float scale, void* codes, cudaStream_t stream);

template <class Epilogue>  // Store or SwiGlu
Status gemm_fp8(const Matrix& w, const Activations& x, const Epilogue& out, cudaStream_t stream);

}  // namespace moesaic::cuda
