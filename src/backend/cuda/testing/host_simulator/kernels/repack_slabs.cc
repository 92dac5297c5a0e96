#include "backend/cuda/kernels/sm90/repack_slabs.cu"
