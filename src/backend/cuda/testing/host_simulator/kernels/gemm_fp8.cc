#include "backend/cuda/kernels/common/gemm_fp8.cu"
