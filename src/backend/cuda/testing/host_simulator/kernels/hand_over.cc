#include "backend/cuda/kernels/common/hand_over.cu"
