#define MOESAIC_ISA avx512
#include "backend/cpu/kernels_impl.h"
