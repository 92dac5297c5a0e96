#include "backend/cuda/kernels/common/repack.cu"
