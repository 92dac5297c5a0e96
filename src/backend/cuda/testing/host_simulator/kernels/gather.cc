#include "backend/cuda/kernels/common/gather.cu"
