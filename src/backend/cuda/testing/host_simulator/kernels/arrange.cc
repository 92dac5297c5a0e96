#include "backend/cuda/kernels/sm90/arrange.cu"
