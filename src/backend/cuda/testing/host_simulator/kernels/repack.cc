#include "backend/cuda/weights/repack.cu"
