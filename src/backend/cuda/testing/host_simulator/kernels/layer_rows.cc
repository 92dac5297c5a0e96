#include "backend/cuda/kernels/common/layer_rows.cu"
