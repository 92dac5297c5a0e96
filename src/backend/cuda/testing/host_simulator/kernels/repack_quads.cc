#include "backend/cuda/kernels/sm120/repack_quads.cu"
