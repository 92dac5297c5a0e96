#include "backend/cuda/kernels/common/pack_step.cu"
