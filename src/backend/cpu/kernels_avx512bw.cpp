#define MOESAIC_ISA avx512bw
#include "backend/cpu/kernels_impl.h"
