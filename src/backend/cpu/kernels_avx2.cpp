#define MOESAIC_ISA avx2
#include "backend/cpu/kernels_impl.h"
